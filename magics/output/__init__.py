"""The output of a cell: collecting, grouping and showing what ranks write and display.

`collector` receives the chunks of one cell, `model` decides what to publish, `publisher` sends it. `grouping` finds
equal text (`progress_bars` for bars), `truncation` limits its size, and `render` makes text and HTML that needs no
style sheet. The n-th displays of all ranks form one output of the cell (`display_rows`, `gallery`), which is published
again when one of them changes: thousands of displays become a few dozen messages. All modules except the publisher and
the collector are pure.
"""
