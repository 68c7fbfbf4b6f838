"""`python -m meshbook.kernel -f CONNECTION_FILE`: what the kernelspec starts."""

from meshbook.kernel.kernel import MeshKernelApp

if __name__ == "__main__":
    MeshKernelApp.launch_instance()
