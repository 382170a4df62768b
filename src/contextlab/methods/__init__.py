"""Context methods: one module or small package each."""
