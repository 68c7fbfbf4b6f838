/** What the parts of the dashboard share. */

import type { ReplyTypes, Sections, ViewMessage } from "./protocol.d.ts";
import type { Selection } from "./selection.js";
import type { Store } from "./store.js";
import type { Theme } from "./theme.js";

/** A change to draw: a section, the arrays of the grid, its marks, the theme, or a panel that has come into view. */
export type Change = keyof Sections | "states" | "values" | "marks" | "theme" | "shown";
export type Changed = ReadonlySet<Change>;

export type RequestKind = keyof ReplyTypes;
export type RequestFields<K extends RequestKind> = Omit<Extract<ViewMessage, { kind: K }>, "kind" | "id">;
export interface Answer<K extends RequestKind> {
  content: ReplyTypes[K];
  buffers: DataView[];
}

/** Sends a request. Rejects with a RequestError, whose message is for people, after `seconds` or if it is refused. */
export type Request = <K extends RequestKind>(
  kind: K,
  fields: RequestFields<K>,
  options?: { seconds?: number },
) => Promise<Answer<K>>;

/** Shows a text in the status line. Returns a function that withdraws it. */
export type Announce = (text: string, kind?: "info" | "error") => () => void;

export interface Context {
  store: Store;
  request: Request;
  /** Sends a message without an answer. Returns whether it was sent. */
  send: (message: ViewMessage) => boolean;
  selection: Selection;
  theme: Theme;
  announce: Announce;
  /** Brings the panel with this title into view and moves the focus there. */
  show: (title: string) => void;
  /** Shows a profile, as HTML, in its panel. */
  showProfile?: (html: string) => void;
  root: HTMLElement;
}

/** A part of the page. `update` is called at most once a frame. */
export interface Part {
  element: HTMLElement;
  update(changed: Changed): void;
  dispose?(): void;
}

/** A panel below the grid: a part that is updated only while it is shown. */
export interface Panel extends Part {
  title: string;
  /** A short text beside the title, or "". */
  badge?(): string;
}

/** The part of anywidget's model that the dashboard uses. */
export interface Model {
  send(content: ViewMessage): void;
  // biome-ignore lint/suspicious/noExplicitAny: the arguments depend on the event
  on(event: string, listener: (...values: any[]) => void): void;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  off(event: string, listener: (...values: any[]) => void): void;
  get(trait: "picture_id"): string;
  /** Patterns of the metrics whose charts are all that the view shows; null for the whole dashboard. */
  get(trait: "metrics"): string[] | null | undefined;
  /** JupyterLab and Notebook 7 only. */
  widget_manager?: { context?: NotebookContext };
}

/** The part of JupyterLab's notebook context that the saved picture uses. */
export interface NotebookContext {
  model: { cells?: Iterable<Cell> };
  saveState?: {
    connect(slot: (sender: unknown, state: string) => void): void;
    disconnect(slot: (sender: unknown, state: string) => void): void;
  };
}

/** A cell of a notebook in JupyterLab; a cell of text has no outputs. */
export interface Cell {
  outputs?: { length: number; get(index: number): Output; set(index: number, output: object): void };
}

export interface Output {
  data: Record<string, unknown>;
  metadata: { meshbook?: { picture_id?: string } };
  toJSON(): object;
}
