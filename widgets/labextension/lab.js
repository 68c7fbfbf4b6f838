// @ts-check
/**
 * meshbook in JupyterLab and Notebook 7: a side panel with the dashboard, the mesh in the status bar, and an item in the
 * launcher. Python's side is magics/dashboard/status_feed.py.
 *
 * This is a container of webpack's module federation, written by hand, so that nothing is built. JupyterLab calls `init`
 * with the modules that it shares, then `get` for the extension.
 */

(() => {
  const NAME = "meshbook"; // of this extension, of the kernel and of the comm
  const PANEL = "meshbook-panel";
  const QUICK_START = "meshbook:quick-start";
  const WIDGET = "application/vnd.jupyter.widget-view+json";
  const FIRST_CELL = "%mesh up --gpus 2";
  const WIDTH = 420; // pixels of the side panel that a user opens for the first time
  const ICON = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
    <g class="jp-icon3" fill="#616161"><circle cx="4" cy="4" r="2.4"/><circle cx="12" cy="4" r="2.4"/>
    <circle cx="4" cy="12" r="2.4"/><circle cx="12" cy="12" r="2.4"/>
    <path d="M4 3.5h8v1H4zM4 11.5h8v1H4zM3.5 4h1v8h-1zM11.5 4h1v8h-1z"/></g></svg>`;

  /**
   * @typedef {{name: string, ranks: number, dead: number, failed: number}} Mesh
   * @typedef {{meshes: Mesh[], model: string, mode: boolean}} Message model: the widget of the dashboard, if that is shown
   * @typedef {{get(): Promise<() => any>, loaded?: unknown}} Shared a version of a module that JupyterLab shares
   */

  /** @type {Record<string, Record<string, Shared>>} */
  let scope = {};

  /**
   * Returns a module that JupyterLab shares; an empty one if this front end has none of this name.
   *
   * @param {string} name
   */
  async function load(name) {
    const versions = Object.values(scope[name] ?? {});
    const version = versions.find((each) => each.loaded) ?? versions[0];
    return version === undefined ? {} : (await version.get())();
  }

  /** @param {Mesh} mesh */
  function describe({ name, ranks, dead, failed }) {
    const troubles = [dead ? `${dead} dead` : "", failed ? `${failed} failed` : ""].filter(Boolean);
    return `${name}: ${ranks} ${ranks === 1 ? "rank" : "ranks"}, ${troubles.join(", ") || "healthy"}`;
  }

  /** The comm to the kernel of the notebook that is shown; it follows changes of notebook and kernel. */
  class Feed {
    #tracker;
    /** @type {any} */
    #context = null; // the session context of the notebook
    /** @type {any} */
    #comm = null;
    /** @type {any} */
    #kernel = null; // the kernel of the comm
    /** @type {(() => void)[]} */
    #listeners = [];
    #showsDashboard = false;
    /** @type {Message | null} */
    message = null; // the last one; null: there is no kernel of meshbook

    /** @param {any} tracker */
    constructor(tracker) {
      this.#tracker = tracker;
      tracker.currentChanged.connect(this.#follow, this);
      this.#follow();
    }

    /** @param {() => void} listener called when `message` has changed */
    listen(listener) {
      this.#listeners.push(listener);
      listener();
    }

    get rendermime() {
      return this.#tracker.currentWidget?.content.rendermime;
    }

    /**
     * Requests the widget of the dashboard, or no longer.
     *
     * @param {boolean} isShown
     */
    showDashboard(isShown) {
      if (isShown === this.#showsDashboard) return;
      this.#showsDashboard = isShown;
      // By another comm: the kernel reads that a comm is opened also while a cell runs, but no later message.
      if (this.#comm !== null) this.#close();
      this.#connect();
    }

    #follow() {
      const context = this.#tracker.currentWidget?.sessionContext ?? null;
      if (context !== this.#context) {
        this.#context?.statusChanged.disconnect(this.#connect, this);
        this.#context = context;
        context?.statusChanged.connect(this.#connect, this);
      }
      this.#connect();
    }

    /** Opens a comm, unless there is one to this kernel already: a restart and another kernel end it. */
    #connect() {
      const kernel = this.#context?.session?.kernel ?? null;
      if (this.#comm !== null && (this.#comm.isDisposed || kernel !== this.#kernel)) this.#disconnect();
      if (this.#comm !== null || kernel?.name !== NAME || !["idle", "busy"].includes(kernel.status)) return;
      const comm = kernel.createComm(NAME);
      comm.commsOverSubshells = "disabled"; // the kernel would start a thread for it
      comm.onMsg = (/** @type {any} */ { content }) => comm === this.#comm && this.#announce(content.data);
      comm.onClose = () => comm === this.#comm && this.#disconnect();
      comm.open({ dashboard: this.#showsDashboard });
      [this.#comm, this.#kernel] = [comm, kernel];
    }

    #disconnect() {
      this.#close();
      this.#announce(null);
    }

    #close() {
      const [comm, kernel] = [this.#comm, this.#kernel];
      [this.#comm, this.#kernel] = [null, null];
      if (!comm.isDisposed && !kernel.isDisposed) comm.close(); // the kernel's end leaves its comms as they are
    }

    /** @param {Message | null} message */
    #announce(message) {
      this.message = message;
      for (const listener of this.#listeners) listener();
    }
  }

  /**
   * The side panel: the dashboard of the current mesh, while the panel is shown.
   *
   * @param {any} Panel a class of Lumino's
   * @param {any} Widget likewise
   * @param {Feed} feed
   */
  function makePanel(Panel, Widget, feed) {
    const hint = new Widget();
    hint.node.style.padding = "12px";

    class SidePanel extends Panel {
      constructor() {
        super();
        this.id = PANEL;
        this.title.caption = "meshbook";
        this.node.style.overflow = "auto";
        this.node.style.background = "var(--jp-layout-color1)";
        this.model = ""; // the one that is shown
        this.isWide = true; // whether it has had its width, or has that of the last visit
        this.addWidget(hint);
        feed.listen(() => this.refresh());
      }

      onAfterAttach() {
        this.refresh(); // a page that is loaded again may show the panel from the start
      }

      onAfterShow() {
        this.refresh();
      }

      /** Gives the panel its width, once: a width that the user chooses stays. */
      widen() {
        let [split, child] = [this.parent, this];
        while (split && typeof split.setRelativeSizes !== "function") [split, child] = [split.parent, split];
        if (this.isWide || !split) return;
        const sizes = split.relativeSizes();
        const place = split.widgets.indexOf(child);
        const missing = WIDTH / split.node.clientWidth - sizes[place];
        const largest = sizes.indexOf(Math.max(...sizes));
        if (missing <= 0 || sizes[largest] <= 2 * missing) return;
        this.isWide = true;
        sizes[place] += missing;
        sizes[largest] -= missing;
        split.setRelativeSizes(sizes);
      }

      onAfterHide() {
        this.refresh(); // the kernel measures more often while a dashboard is shown
      }

      refresh() {
        feed.showDashboard(this.isVisible);
        if (this.isVisible) requestAnimationFrame(() => this.widen()); // once the area around it has its size
        const { message } = feed;
        hint.node.textContent =
          message === null ? "Open a notebook with the kernel Meshbook." : `No mesh is up. Run ${FIRST_CELL}.`;
        hint.setHidden(message !== null && message.meshes.length > 0);
        const model = (this.isVisible && message?.model) || "";
        if (model === this.model) return;
        this.model = model;
        for (const view of [...this.widgets].filter((each) => each !== hint)) view.dispose();
        if (model) this.display(model);
      }

      /** @param {string} model */
      display(model) {
        const { rendermime } = feed;
        const view = rendermime.createRenderer(WIDGET);
        const data = { [WIDGET]: { version_major: 2, version_minor: 0, model_id: model } };
        this.addWidget(view);
        view.renderModel(rendermime.createModel({ data, trusted: true }));
      }
    }
    return new SidePanel();
  }

  /**
   * The item of the status bar. It is empty while no mesh is up.
   *
   * @param {any} Widget
   * @param {Feed} feed
   * @param {() => void} open
   */
  function makeStatus(Widget, feed, open) {
    const button = document.createElement("span");
    button.className = "jp-StatusBar-TextItem meshbook-mesh";
    button.tabIndex = 0;
    button.setAttribute("role", "button");
    button.style.cursor = "pointer";
    button.addEventListener("click", open);
    button.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") open();
    });
    feed.listen(() => {
      const meshes = feed.message?.meshes ?? [];
      const texts = meshes.map(describe);
      const mode = feed.message?.mode ? "mesh mode" : "";
      button.textContent = [texts[0] ?? "", mode].filter(Boolean).join(" · ");
      const meaning = mode && "Mesh mode is on: cells run on the ranks, unless they begin with %%here";
      button.title = [...texts, meaning, "Click to show the dashboard"].filter(Boolean).join("\n");
      button.style.color = meshes.some(({ dead, failed }) => dead || failed) ? "var(--jp-error-color1)" : "";
      button.hidden = texts.length === 0;
    });
    return new Widget({ node: button });
  }

  /**
   * Opens a notebook with the kernel Meshbook, whose first cell starts a mesh.
   *
   * @param {any} commands
   * @param {string} cwd
   */
  async function startQuickly(commands, cwd) {
    const notebook = await commands.execute("notebook:create-new", { cwd, kernelName: NAME });
    await notebook.context.ready;
    notebook.content.model.sharedModel.getCell(0).setSource(FIRST_CELL);
    return notebook;
  }

  async function makePlugins() {
    const [widgets, application, notebook, launchers, statusBars, palettes, ui] = await Promise.all(
      [
        "@lumino/widgets",
        "@jupyterlab/application",
        "@jupyterlab/notebook",
        "@jupyterlab/launcher",
        "@jupyterlab/statusbar",
        "@jupyterlab/apputils",
        "@jupyterlab/ui-components",
      ].map(load),
    );
    /** @type {Record<string, any>} */
    const tokens = {
      launcher: launchers.ILauncher,
      statusBar: statusBars.IStatusBar,
      palette: palettes.ICommandPalette,
      restorer: application.ILayoutRestorer,
    };
    const optional = Object.keys(tokens).filter((name) => tokens[name] !== undefined);
    const plugin = {
      id: `${NAME}:plugin`,
      description: "The dashboard of meshbook in a side panel, its mesh in the status bar, and a quick start.",
      autoStart: true,
      requires: [notebook.INotebookTracker],
      optional: optional.map((name) => tokens[name]), // Notebook 7 has no launcher and no status bar
      /**
       * @param {any} app
       * @param {any} tracker
       * @param {any[]} services
       */
      activate(app, tracker, ...services) {
        const icon = new ui.LabIcon({ name: `${NAME}:mesh`, svgstr: ICON });
        const feed = new Feed(tracker);
        const panel = makePanel(widgets.Panel, widgets.Widget, feed);
        panel.title.icon = icon;
        const { launcher, statusBar, palette, restorer } = Object.fromEntries(
          optional.map((name, index) => [name, services[index]]),
        );
        app.shell.add(panel, "right", { rank: 900 });
        restorer?.add(panel, PANEL);
        app.restored?.then(() => {
          panel.isWide = panel.isVisible;
        });
        const item = makeStatus(widgets.Widget, feed, () => app.shell.activateById(PANEL));
        statusBar?.registerStatusItem(`${NAME}:mesh`, { item, align: "left", rank: 100 });
        app.commands.addCommand(QUICK_START, {
          label: "meshbook quick start",
          caption: "Open a notebook that starts a mesh",
          icon,
          execute: (/** @type {any} */ { cwd = "" }) => startQuickly(app.commands, cwd),
        });
        launcher?.add({ command: QUICK_START, category: "Notebook", rank: 10 });
        palette?.addItem({ command: QUICK_START, category: "meshbook" });
      },
    };
    return [plugin];
  }

  const page = /** @type {any} */ (window);
  page._JUPYTERLAB ??= {};
  page._JUPYTERLAB[NAME] = {
    /** @param {typeof scope} shared */
    init(shared) {
      scope = shared;
    },
    async get() {
      const plugins = await makePlugins();
      return () => ({ __esModule: true, default: plugins });
    },
  };
})();
