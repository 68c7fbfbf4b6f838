"""`python -m meshbook.kernel -f CONNECTION_FILE`: the command of the kernelspec."""

from meshbook.kernel.kernel import MeshKernelApp

if __name__ == "__main__":
    MeshKernelApp.launch_instance()
