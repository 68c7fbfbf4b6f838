"""The output of a cell: collecting, grouping and showing what ranks write and display.

`collector` receives chunks of one cell, `model` (pure) decides what to publish, `publisher` sends it. `grouping`
finds equal text (`progress_bars` for bars), `truncation` keeps it small, and `render` makes text and HTML that needs
no style sheet. The n-th display of each rank is one output of the cell (`displays`, `gallery`), published again where
one of them changes: so thousands of displays are a few dozen messages. All but the publisher and the collector are
pure.
"""
