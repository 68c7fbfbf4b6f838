"""What an actor's author uses: `Actor`, `@endpoint`, futures, value meshes, and who is running. Knows no node."""
