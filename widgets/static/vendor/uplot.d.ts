/** The part of uPlot that the dashboard uses. */

export type Column = (number | null | undefined)[];
export type Table = [xs: number[], ...columns: Column[]];
export type Colour = string | ((chart: uPlot) => string);

export interface Series {
  label?: string;
  show?: boolean;
  auto?: boolean;
  stroke?: Colour;
  fill?: Colour;
  width?: number;
  dash?: number[];
  spanGaps?: boolean;
  points?: { show?: boolean | ((chart: uPlot, series: number) => boolean); size?: number };
}
export interface Scale {
  time?: boolean;
  distr?: 1 | 3;
  range?: (chart: uPlot, low: number, high: number) => [number | null, number | null];
  min?: number;
  max?: number;
}
export interface Axis {
  stroke?: Colour;
  grid?: { stroke?: Colour; width?: number };
  ticks?: { stroke?: Colour; width?: number; size?: number };
  size?: number;
  space?: number;
  font?: string;
  values?: (chart: uPlot, splits: number[]) => (string | null)[];
}
export interface Options {
  width: number;
  height: number;
  padding?: [number | null, number | null, number | null, number | null];
  legend?: { show: boolean };
  cursor?: {
    drag?: { x: boolean; y: boolean; setScale: boolean };
    y?: boolean;
    points?: { size?: number };
    bind?: Record<string, (chart: uPlot, target: HTMLElement, handler: (event: MouseEvent) => null) => (event: MouseEvent) => null>;
  };
  scales?: Record<string, Scale>;
  axes?: Axis[];
  series: Series[];
  bands?: { series: [number, number]; fill?: Colour }[];
  hooks?: { setCursor?: ((chart: uPlot) => void)[]; setSelect?: ((chart: uPlot) => void)[] };
}

export class uPlot {
  static join(tables: Table[]): Table;
  static rangeNum(low: number, high: number, pad: number, soft: boolean): [number, number];
  static rangeLog(low: number, high: number, base: number, fullMags: boolean): [number, number];

  constructor(options: Options, data: Table, target: HTMLElement);
  root: HTMLElement;
  over: HTMLElement;
  width: number;
  data: Table;
  cursor: { left?: number; top?: number; idx?: number | null };
  select: { left: number; width: number; top: number; height: number };
  scales: Record<string, Scale>;
  syncRect(isDeferred: boolean): void;
  batch(work: () => void): void;
  setData(data: Table, resetScales?: boolean): void;
  setSize(size: { width: number; height: number }): void;
  setCursor(place: { left: number; top: number }): void;
  setSelect(place: { left: number; width: number; top: number; height: number }, fires?: boolean): void;
  posToVal(place: number, scale: string): number;
  valToPos(value: number, scale: string): number;
  redraw(rebuildPaths?: boolean): void;
  destroy(): void;
}
