"""What methods need and cost on a GPU, by arithmetic and on shapes alone, before anyone pays for one."""
