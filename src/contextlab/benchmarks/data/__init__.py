"""Where the texts of the tasks come from: files on disk, the hub, or the generated sample."""
