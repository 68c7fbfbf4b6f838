"""Export of the ranks' vitals to monitoring systems, through their own, optional libraries."""
