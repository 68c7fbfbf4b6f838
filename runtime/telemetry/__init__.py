"""What ranks report unasked, as events: today their output."""
