/** The part of ansi_up that the dashboard uses. */
export class AnsiUp {
  use_classes: boolean;
  ansi_to_html(text: string): string;
}
