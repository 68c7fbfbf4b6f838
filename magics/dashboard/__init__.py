"""The dashboards of a notebook: what they show, and the actions of their buttons."""
