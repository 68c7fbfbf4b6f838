"""What a person types in a notebook and what they see: options, selectors, running, grouping, errors."""
