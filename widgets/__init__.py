"""The live dashboard of a mesh: a pure model, and a widget that shows it (anywidget, on ipywidgets).

    view -> kernel comm -> DashboardComm -> DashboardServer -> DashboardComm -> all views     messages: protocol
                                            | reads four times a second, and acts on a thread per request
                   DashboardModel (pure) <- Source.snapshot() <- NotebookSource or simulation

The server (`server`) has one thread while a view is open. It receives, ticks and sends; deaths, heals and cells wake it
early. `UpdateScheduler` and `SendBudget` (pure) decide when: four times a second while something runs, otherwise once.
When only measurements have changed for five minutes, the server publishes nothing, since published messages keep an
idle kernel from being culled. A view that acknowledges nothing is dropped. All data travels in custom messages, none in
traits.

The model (`dashboard_model`) tracks the state of the views. It sends short sections when they differ, long ones (worst,
hosts, topology) once a second or less often. It sends one array per metric, whole or as changes, whichever is shorter
(`sent_grid`), and skips a change that is smaller than a colour step. A scale (`grid_metrics`) widens at once and
shrinks after ten seconds. A rank's state (`states`) is the most severe that holds. A rank that never sent a heartbeat
is not measured, and not stale. In synchronous training all steps have one length, whichever rank is slow; so
`StragglerDetector` adds the ranks that still work while most wait in a collective. The picture of a saved notebook
(`snapshot`) is a second output, which a live dashboard hides. The kernel sends it again after events, and `picture.js`
puts it into the outputs when the notebook is saved; an update by display_id would be lost after a page reload.

ipykernel receives nothing for a widget while sync code runs; beside an async cell it sets the parent header, and fires
IPython's events as if a cell had run. So `DashboardComm` sends without a parent, except for the reply to a page that
requests its state. MeshKernel handles the comm's messages where they arrive (`kernel.services`), always, so that they
stay in order. A stock kernel asks the comm for a subshell when a message arrives, and `DashboardComm` handles the
message in that call, also while a sync cell runs. Only a reloaded page waits there for the end of sync code.

In the browser (`static/`) there is no build step: `assets` joins ES modules into the one that anywidget takes, without
their comments; each becomes a function, so names do not collide. `dashboard.js` builds a view: a `Connection` (numbers,
gaps, requests, silence), a `Store` of the states so far, `Frames` that draw changes once a frame, and panels in tabs,
of which only the visible one is updated. The timeline gives each kind of time a pattern as well as a colour. It queries
the ranks on request, or when a cell has ended while it is visible. `context.d.ts` has the types of parts and panels,
and `typescript` writes `protocol.d.ts` from `protocol`. Drawing commands are ten times slower than copied pixels
without a GPU, so the grid copies cells (`paint.js`, `raster.js`) of a pure layout (`layout.js`). `keys.js` keeps keys
from JupyterLab, where "d d" would delete the cell. A full state goes to all views; the `Store` reports only sections
that differ, so a reader's place stays. The log panel keeps a contiguous window (`logwindow.js`, pure) that grows as
the reader scrolls. Only visible lines are in the page (`virtual.js`): with 97,000 lines, the 500 new lines of half a
second cost 6 to 23 ms, a scroll 5 ms. Filters run in the kernel, marks in the page. Text of ranks becomes text nodes,
or goes through ansi_up, which escapes it; profiles show in a frame without scripts. A colour that a line does not reset
applies to the next line of that rank and stream; filters may lose it.

Curves (`curves.js`) are drawn by uPlot. `curve_bands` (pure) makes of thousands of ranks a mean, a band and at most
eight lines of ranks that leave it. A view asks for the charts in sight, and gets the curves that have changed since its
last question, in replies of a bounded size (`curve_charts`); zooming asks for more points of a range. Smoothing and
logarithmic axes are the view's own. At most four charts are drawn in a frame. `%mesh curves` is the same widget with
this panel alone. Its picture for saved notebooks and terminals comes from `curve_picture`.
"""
