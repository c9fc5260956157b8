//! The plot for the README: grouped horizontal bars as SVG.
//!
//! Every case shows the *cost relative to its best contender that is not pelton* (rates are inverted), so that cases with
//! different units share one axis and shorter is always better. The number itself is printed after each bar.

use std::fmt::Write;

use crate::harness::{Plotted, Row, Side, Standing};
use crate::report::figure;

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 24.0;
/// Where bars begin; contender names are to the left.
const BARS_LEFT: f64 = 232.0;
/// Where bars end; numbers that do not fit after a bar are to the right.
const BARS_RIGHT: f64 = 730.0;
const ROW_HEIGHT: f64 = 19.0;
const BAR_HEIGHT: f64 = 13.0;
const CASE_HEIGHT: f64 = 30.0;
const HEADER_HEIGHT: f64 = 98.0;
const FOOTER_HEIGHT: f64 = 76.0;
/// Bars are cut here, with a mark: one very slow contender must not flatten all the others.
const MOST: f64 = 4.0;

/// GitHub shows this through `<img>`, where the page's colours are out of reach but media queries work. Viewers without media
/// queries get the light colours, background included.
const STYLE: &str = "\
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 12.5px; fill: #1f2328 }
.title { font-size: 19px; font-weight: 600 } .case { font-weight: 600; font-size: 13px }
.soft { fill: #59636e } .strong { font-weight: 600 }
.figure { paint-order: stroke; stroke: #ffffff; stroke-width: 7px; stroke-linejoin: round }
.page { fill: #ffffff } .grid { stroke: #d1d9e0 } .one { stroke: #59636e; stroke-dasharray: 4 3 }
.ours { fill: #0f7fc4 } .peer { fill: #a8b1bb } .floor { fill: #dde2e7; stroke: #a8b1bb } .cut { fill: #ffffff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .soft { fill: #9198a1 } .figure { stroke: #0d1117 }
.page { fill: #0d1117 } .grid { stroke: #30363d } .one { stroke: #9198a1 }
.ours { fill: #3fa9f5 } .peer { fill: #59636e } .floor { fill: #262c34; stroke: #59636e } .cut { fill: #0d1117 }
}";

/// Draws the plotted cases of `standings`.
pub fn svg(title: &str, caption: &str, standings: &[Standing]) -> String {
    let plotted: Vec<&Standing> = standings
        .iter()
        .filter(|standing| standing.case.plotted == Plotted::Yes && !standing.rows.is_empty())
        .collect();
    let rows: usize = plotted.iter().map(|standing| standing.rows.len()).sum();
    let bottom = HEADER_HEIGHT + plotted.len() as f64 * CASE_HEIGHT + rows as f64 * ROW_HEIGHT + 6.0;
    let mut drawing = Drawing::default();
    drawing.frame(title, bottom + FOOTER_HEIGHT);
    drawing.legend();
    drawing.axis(bottom, &reference_of(&plotted));
    let mut top = HEADER_HEIGHT;
    for standing in plotted {
        top = drawing.case(standing, top);
    }
    drawing.text(MARGIN, bottom + FOOTER_HEIGHT - 14.0, "soft", caption);
    drawing.0.push_str("</svg>\n");
    drawing.0
}

/// Describes what all bars are relative to.
fn reference_of(plotted: &[&Standing]) -> String {
    let best = "the best contender that is not pelton";
    let mut named: Vec<_> = plotted.iter().map(|standing| standing.case.relative_to).collect();
    named.dedup();
    match named[..] {
        [Some(only)] => only.to_owned(),
        [] | [None] => best.to_owned(),
        _ => format!("{}, else {best}", named.iter().flatten().next().unwrap_or(&"")),
    }
}

#[derive(Default)]
struct Drawing(String);

impl Drawing {
    fn line(&mut self, element: std::fmt::Arguments) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.anchored(x, y, class, "start", text);
    }

    fn anchored(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        self.line(format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{text}</text>"#));
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        self.line(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        ));
    }

    fn vertical(&mut self, x: f64, from: f64, to: f64, class: &str) {
        self.line(format_args!(r#"<line x1="{x:.1}" x2="{x:.1}" y1="{from:.1}" y2="{to:.1}" class="{class}"/>"#));
    }

    fn frame(&mut self, title: &str, height: f64) {
        let title = escaped(title);
        self.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="{title}">"#
        ));
        self.line(format_args!("<title>{title}</title>\n<style>\n{STYLE}\n</style>"));
        self.rect(0.0, 0.0, WIDTH, height, "page");
        self.line(format_args!(r#"<text x="{MARGIN}" y="36" class="title">{title}</text>"#));
    }

    fn legend(&mut self) {
        let mut x = MARGIN;
        for (class, label, room) in [
            ("ours", "pelton", 82.0),
            ("peer", "peer", 70.0),
            ("floor", "floor (bare system calls, or statistics off)", 0.0),
        ] {
            self.rect(x, 54.0, 13.0, 13.0, class);
            self.text(x + 19.0, 65.0, "", label);
            x += room;
        }
    }

    fn axis(&mut self, bottom: f64, reference: &str) {
        for step in 0..=(MOST as u32) {
            let x = x_of(f64::from(step));
            let class = if step == 1 { "one" } else { "grid" };
            self.vertical(x, HEADER_HEIGHT + CASE_HEIGHT - 4.0, bottom, class);
            self.anchored(x, bottom + 17.0, "soft", "middle", &format!("{step}×"));
        }
        let label = format!("cost relative to {reference} (1×, dashed); shorter is better");
        self.anchored((BARS_LEFT + BARS_RIGHT) / 2.0, bottom + 36.0, "", "middle", &label);
    }

    /// Draws one group of bars and returns where the next one begins.
    fn case(&mut self, standing: &Standing, top: f64) -> f64 {
        self.rect(MARGIN, top + 4.0, WIDTH - 2.0 * MARGIN, CASE_HEIGHT - 8.0, "page");
        self.text(MARGIN, top + 20.0, "case", &standing.case.name);
        let mut top = top + CASE_HEIGHT;
        let Some(reference) = standing.reference().or(standing.rows.first()) else { return top };
        for row in &standing.rows {
            self.bar(standing, row, standing.relative_cost(row, reference), top);
            top += ROW_HEIGHT;
        }
        top
    }

    fn bar(&mut self, standing: &Standing, row: &Row, cost: f64, top: f64) {
        let (class, name_class) = match row.side {
            Side::Ours => ("ours", "strong"),
            Side::Peer => ("peer", ""),
            Side::Floor => ("floor", ""),
        };
        let baseline = top + BAR_HEIGHT - 2.0;
        self.anchored(BARS_LEFT - 10.0, baseline, name_class, "end", row.contender);
        let end = x_of(cost.min(MOST));
        self.rect(BARS_LEFT, top, end - BARS_LEFT, BAR_HEIGHT, class);
        if cost > MOST {
            for notch in [30.0, 22.0] {
                let x = end - notch;
                let low = top + BAR_HEIGHT;
                self.line(format_args!(
                    r#"<path d="M{x:.1} {low:.1} l5 -{BAR_HEIGHT} h3 l-5 {BAR_HEIGHT} z" class="cut"/>"#
                ));
            }
        }
        let label = format!("{} {} · {}×", figure(row.best), standing.case.unit, figure(cost));
        self.text(end + 8.0, baseline, if row.side == Side::Ours { "figure strong" } else { "figure soft" }, &label);
    }
}

fn x_of(cost: f64) -> f64 {
    BARS_LEFT + (BARS_RIGHT - BARS_LEFT) * cost / MOST
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Better, Case};

    fn standing(case: Case) -> Standing {
        let row = |contender, side, best| Row {
            contender,
            version: "1.0".into(),
            side,
            best,
            median: best,
            windows: 5,
            cpu_us: None,
            syscalls: None,
        };
        let rows =
            vec![row("Mutex<Vec>", Side::Peer, 10.0), row("pelton", Side::Ours, 20.0), row("slow", Side::Peer, 1.0)];
        Standing { case, rows }
    }

    fn widths(svg: &str, class: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(&format!("class=\"{class}\"")));
        let width = |line: &str| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok();
        // The first of each class belongs to the legend.
        bars.skip(1).filter_map(width).collect()
    }

    #[test]
    fn bars_show_relative_cost_for_either_direction_of_the_unit() {
        let unit = (BARS_RIGHT - BARS_LEFT) / MOST;
        let rate = svg("t", "c", &[standing(Case::new("posts", "M/s", Better::Higher))]);
        let close = |measured: f64, expected: f64| (measured - expected).abs() < 0.1;
        assert!(close(widths(&rate, "ours")[0], unit / 2.0));
        assert!(close(widths(&rate, "peer")[0], unit));
        assert!(close(widths(&rate, "peer")[1], unit * MOST), "ten times the cost is cut at the edge");
        assert_eq!(rate.matches("class=\"cut\"").count(), 2);
    }

    #[test]
    fn text_is_escaped_and_elements_are_closed() {
        let drawn = svg("a < b & c", "caption", &[standing(Case::new("posts", "M/s", Better::Higher))]);
        assert!(drawn.contains("a &lt; b &amp; c") && drawn.contains("Mutex&lt;Vec&gt;"));
        for name in ["svg", "text", "style", "title"] {
            let opened = drawn.matches(&format!("<{name}")).count();
            assert_eq!(opened, drawn.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn table_only_cases_are_left_out() {
        let hidden = svg("t", "c", &[standing(Case::new("only in the table", "ns", Better::Lower).table_only())]);
        assert!(!hidden.contains("only in the table"));
    }
}
