"""First on the path of kernels whose tests need no torch: to import it is most of what a kernel with a mesh costs."""

raise ImportError("torch is left out of this notebook: open_notebook(torch=True) has it")
