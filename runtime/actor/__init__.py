"""The API for authors of actors: `Actor`, `@endpoint`, futures, value meshes and contexts. It imports no node."""
