"""Read by kernels when they start: they print Carrel's notices with the next cell."""

c = get_config()
c.InteractiveShellApp.extensions.append("carrel_gpu_notebook.ipython")
