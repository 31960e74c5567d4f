//! Charts as SVG: grouped bars and lines, drawn without a library or fonts of our own.
//!
//! Both share a frame: a title, a value axis from zero with round steps, and a legend.

use std::fmt::Write as _;

use crate::report::{Row, Spread};

pub(crate) const COLOURS: [&str; 8] = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e"];
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 70.0;
const BAR: f64 = 12.0;
const GAP: f64 = 22.0;
/// From one drawing to the one below.
const PITCH: f64 = TOP + HEIGHT + 50.0;
/// The unit of rates, of which axes also show thousands and millions.
const RATE: &str = "/s";

/// What is drawn, and how wide it is.
struct Drawing {
    width: f64,
    elements: String,
}

impl Drawing {
    fn into_svg(self) -> String {
        svg(self.width, PITCH, &self.elements)
    }
}

/// A group of bars: its label and the bar of each series, where there is one.
struct Group {
    label: String,
    bars: Vec<Option<Spread>>,
}

/// The rates of rows: a group for each setting, a bar for each engine and batch.
pub(crate) fn rates(title: &str, rows: &[Row]) -> String {
    row_bars(title, RATE, rows).into_svg()
}

/// The same where rows have hundredths in the place of rates.
pub(crate) fn percents(title: &str, rows: &[Row]) -> String {
    row_bars(title, "%", rows).into_svg()
}

/// Several drawings of rates, one below the other, each with its title and its own axis.
pub(crate) fn panels(panels: &[(String, Vec<Row>)]) -> String {
    let drawings: Vec<_> = panels.iter().map(|(title, rows)| row_bars(title, RATE, rows)).collect();
    let width = drawings.iter().map(|drawing| drawing.width).fold(0.0, f64::max);
    let mut elements = String::new();
    for (row, drawing) in drawings.iter().enumerate() {
        let y = PITCH * row as f64;
        put(&mut elements, &format!(r#"<g transform="translate(0 {y:.0})">"#));
        elements += &drawing.elements;
        put(&mut elements, "</g>");
    }
    svg(width, PITCH * drawings.len() as f64, &elements)
}

fn row_bars(title: &str, unit: &'static str, rows: &[Row]) -> Drawing {
    let series = distinct(rows.iter().map(series));
    let groups = distinct(rows.iter().map(setting)).into_iter().map(|label| {
        let bar = |name: &String| {
            let mut rows = rows.iter();
            let row = rows.find(|row| setting(row) == label && series_is(row, name));
            row.map(|row| row.ops_per_second)
        };
        Group { bars: series.iter().map(bar).collect(), label }
    });
    bars(title, unit, &series, &groups.collect::<Vec<_>>())
}

fn series_is(row: &Row, name: &str) -> bool {
    series(row) == name
}

fn series(row: &Row) -> String {
    match row.batch {
        0 | 1 => row.engine.clone(),
        _ if row.experiment == "transactions" => row.engine.clone(),
        batch => format!("{} ×{batch}", row.engine),
    }
}

fn setting(row: &Row) -> String {
    let threads = format!("{} thread{}", row.threads, if row.threads == 1 { "" } else { "s" });
    match row.operation.as_str() {
        "load" => format!("load|{threads}"),
        _ if row.experiment == "pairs" => {
            let integrity = if row.integrity == Some(true) { "checked" } else { "unchecked" };
            format!("{}|{threads}|{integrity}", row.distribution)
        }
        _ if row.experiment == "transactions" => format!("{}|{threads}", row.distribution),
        operation if row.experiment == "ycsb" => {
            format!("{}% reads, {operation}|{}, {threads}", row.reads_percent, row.distribution)
        }
        operation => format!("{operation}|{threads}"),
    }
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = Vec::new();
    for name in names {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known
}

/// One of several drawings of bars that share a sheet: its title, unit, series and groups.
pub(crate) struct Panel {
    title: String,
    unit: &'static str,
    series: Vec<String>,
    groups: Vec<Group>,
}

impl Panel {
    /// Of rates by their series and group, both in the order of their first appearance.
    pub(crate) fn of_rates(title: &str, points: impl Iterator<Item = (String, String, Spread)>) -> Self {
        Self::new(title, RATE, points)
    }

    /// Of any values.
    pub(crate) fn new(title: &str, unit: &'static str, points: impl Iterator<Item = (String, String, Spread)>) -> Self {
        let points: Vec<_> = points.collect();
        let series = distinct(points.iter().map(|point| point.0.clone()));
        let of = |name: &String, label: &String| points.iter().find(|point| point.0 == *name && point.1 == *label).map(|point| point.2);
        let labels = distinct(points.iter().map(|point| point.1.clone())).into_iter();
        let groups = labels.map(|label| Group { bars: series.iter().map(|name| of(name, &label)).collect(), label }).collect();
        Self { title: title.to_owned(), unit, series, groups }
    }
}

/// Panels side by side, two in a row, under one title.
pub(crate) fn sheet(title: &str, panels: &[Panel]) -> String {
    const PANELS_IN_A_ROW: usize = 2;
    const HEAD: f64 = 36.0;
    let panel_width = |panel: &Panel| {
        let bars = bars_width(panel.series.len(), panel.groups.len());
        bars.max(legend_end(&panel.series)).max(title_end(&panel.title, 15.0))
    };
    let across = panels.iter().map(panel_width).fold(0.0, f64::max);
    let rows = panels.len().div_ceil(PANELS_IN_A_ROW) as f64;
    let (width, height) = (across * PANELS_IN_A_ROW.min(panels.len()) as f64, HEAD + PITCH * rows);
    let width = width.max(title_end(title, 18.0));
    let mut elements = String::new();
    put(&mut elements, &format!(r#"<text x="{LEFT}" y="26" font-size="18">{}</text>"#, escape(title)));
    for (index, panel) in panels.iter().enumerate() {
        let (x, y) = ((index % PANELS_IN_A_ROW) as f64 * across, HEAD + (index / PANELS_IN_A_ROW) as f64 * PITCH);
        put(&mut elements, &format!(r#"<g transform="translate({x:.0} {y:.0})">"#));
        elements += &bars(&panel.title, panel.unit, &panel.series, &panel.groups).elements;
        put(&mut elements, "</g>");
    }
    svg(width, height, &elements)
}

fn group_width(series: usize) -> f64 {
    (series as f64 * BAR + GAP).max(120.0)
}

fn bars_width(series: usize, groups: usize) -> f64 {
    LEFT + groups as f64 * group_width(series) + 20.0
}

/// Draws grouped bars with whiskers from the lowest to the highest run.
fn bars(title: &str, unit: &'static str, series: &[String], groups: &[Group]) -> Drawing {
    let (group_width, width) = (group_width(series.len()), bars_width(series.len(), groups.len()));
    let spreads = groups.iter().flat_map(|group| group.bars.iter().flatten());
    let scale = Scale::up_to(spreads.map(|spread| spread.max).fold(0.0, f64::max), unit);
    let mut drawing = frame(title, width, series, &scale);
    for (index, group) in groups.iter().enumerate() {
        draw_group(&mut drawing.elements, group, LEFT + index as f64 * group_width, group_width, &scale);
    }
    drawing
}

fn draw_group(svg: &mut String, group: &Group, left: f64, width: f64, scale: &Scale) {
    let start = left + (width - group.bars.len() as f64 * BAR) / 2.0;
    for (index, spread) in group.bars.iter().enumerate() {
        let Some(spread) = spread else { continue };
        let (x, y) = (start + index as f64 * BAR, scale.y(spread.median));
        let colour = COLOURS[index % COLOURS.len()];
        let (bar, height) = (BAR - 1.0, TOP + HEIGHT - y);
        put(svg, &format!(r#"<rect x="{x:.1}" y="{y:.1}" width="{bar}" height="{height:.1}" fill="{colour}"/>"#));
        let (middle, low, high) = (x + bar / 2.0, scale.y(spread.min), scale.y(spread.max));
        put(svg, &format!(r##"<path d="M{middle:.1} {low:.1}V{high:.1}" stroke="#333"/>"##));
    }
    for (row, part) in group.label.split('|').enumerate() {
        let y = TOP + HEIGHT + 16.0 + row as f64 * 14.0;
        text(svg, left + width / 2.0, y, "middle", part);
    }
}

/// Draws lines of rates over a common count of steps; `unit` names the steps.
pub(crate) fn lines(title: &str, unit: &str, lines: &[(String, Vec<f64>)]) -> String {
    let width = 900.0;
    let names: Vec<_> = lines.iter().map(|(name, _)| name.clone()).collect();
    let highest = lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
    let steps = lines.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let scale = Scale::up_to(highest, RATE);
    let mut drawing = frame(title, width, &names, &scale);
    let svg = &mut drawing.elements;
    let across = (width - LEFT - 20.0) / (steps.max(2) - 1) as f64;
    for (index, (_, values)) in lines.iter().enumerate() {
        let point = |(step, value): (usize, &f64)| format!("{:.1},{:.1}", LEFT + step as f64 * across, scale.y(*value));
        let points = values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ");
        let colour = COLOURS[index % COLOURS.len()];
        put(svg, &format!(r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>"#));
    }
    text(svg, LEFT, TOP + HEIGHT + 16.0, "start", "1");
    text(svg, width - 20.0, TOP + HEIGHT + 16.0, "end", &format!("{steps} {unit}"));
    drawing.into_svg()
}

/// The value axis.
struct Scale {
    top: f64,
    step: f64,
    unit: &'static str,
}

impl Scale {
    /// An axis with about five round steps.
    fn up_to(highest: f64, unit: &'static str) -> Self {
        let rough = highest.max(1.0) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough).unwrap_or(10.0);
        let step = factor * power;
        Self { top: (highest.max(1.0) / step).ceil() * step, step, unit }
    }

    /// What stands at a step: all of an axis in one unit, with the digits that the steps have.
    fn label(&self, value: f64) -> String {
        let (factor, prefix) = match self.top {
            top if self.unit == RATE && top >= 1e6 => (1e6, "M"),
            top if self.unit == RATE && top >= 1e3 => (1e3, "k"),
            _ => (1.0, ""),
        };
        // A step that is a power of ten may have a logarithm a little above it.
        let digits = (-(self.step / factor).log10() - 1e-6).ceil().max(0.0) as usize;
        format!("{:.digits$} {prefix}{}", value / factor, self.unit)
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - value / self.top)
    }
}

/// The beginning of a drawing: title, legend and axis.
fn frame(title: &str, width: f64, series: &[String], scale: &Scale) -> Drawing {
    let (width, mut elements) = (width.max(legend_end(series)).max(title_end(title, 15.0)), String::new());
    let title = escape(title);
    put(&mut elements, &format!(r#"<text x="{LEFT}" y="24" font-size="15">{title}</text>"#));
    draw_legend(&mut elements, series);
    draw_axis(&mut elements, width, scale);
    Drawing { width, elements }
}

/// A whole drawing of this size.
fn svg(width: f64, height: f64, elements: &str) -> String {
    open(width, height) + elements + "</svg>\n"
}

/// The beginning of any drawing; the end is `</svg>`.
pub(crate) fn open(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

/// Where a title in letters of this size ends, in any plain font.
pub(crate) fn title_end(title: &str, size: f64) -> f64 {
    LEFT + title.chars().count() as f64 * size * 0.6 + 10.0
}

fn legend_end(series: &[String]) -> f64 {
    LEFT + series.iter().map(|name| legend_width(name)).sum::<f64>()
}

pub(crate) fn legend_width(name: &str) -> f64 {
    name.chars().count() as f64 * 6.5 + 30.0
}

fn draw_legend(svg: &mut String, series: &[String]) {
    let mut x = LEFT;
    for (index, name) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        put(svg, &format!(r#"<rect x="{x:.1}" y="38" width="10" height="10" fill="{colour}"/>"#));
        text(svg, x + 14.0, 47.0, "start", name);
        x += legend_width(name);
    }
}

fn draw_axis(svg: &mut String, width: f64, scale: &Scale) {
    for index in 0..=(scale.top / scale.step).round() as u32 {
        let value = f64::from(index) * scale.step;
        let (y, right) = (scale.y(value), width - 20.0);
        put(svg, &format!(r##"<path d="M{LEFT} {y:.1}H{right:.0}" stroke="#ddd"/>"##));
        text(svg, LEFT - 6.0, y + 4.0, "end", &scale.label(value));
    }
}

pub(crate) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escape(words);
    put(svg, &format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#));
}

pub(crate) fn put(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("writing to a string does not fail");
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was cut off where there were few bars.
    #[test]
    fn a_drawing_is_as_wide_as_its_title() {
        let (title, points) =
            ("Some title that is longer than a bar is wide, or two", [("esker".to_owned(), "one".to_owned(), Spread::default())]);
        let panel = |title| Panel::of_rates(title, points.clone().into_iter());
        let drawings = [rates(title, &[Row::default()]), sheet(title, &[panel("short")]), sheet("short", &[panel(title)])];
        for drawing in drawings {
            let width = drawing.split("width=\"").nth(1).and_then(|rest| rest.split('"').next()).and_then(|width| width.parse().ok());
            assert!(width.is_some_and(|width: f64| width > LEFT + title.len() as f64 * 8.0), "{drawing}");
        }
    }

    #[test]
    fn axes_are_round() {
        let scale = Scale::up_to(43.0, RATE);
        assert!((scale.step - 10.0).abs() < 1e-9 && (scale.top - 50.0).abs() < 1e-9);
    }

    #[test]
    fn an_axis_has_one_unit_and_the_digits_of_its_steps() {
        let labels = |highest, unit| {
            let scale = Scale::up_to(highest, unit);
            (0..=(scale.top / scale.step).round() as u32).map(|index| scale.label(f64::from(index) * scale.step)).collect::<Vec<_>>()
        };
        assert_eq!(labels(1.0, RATE), ["0.0 /s", "0.2 /s", "0.4 /s", "0.6 /s", "0.8 /s", "1.0 /s"]);
        assert_eq!(labels(1.1e6, RATE), ["0.0 M/s", "0.5 M/s", "1.0 M/s", "1.5 M/s"]);
        assert_eq!(labels(450.0e3, RATE), ["0 k/s", "100 k/s", "200 k/s", "300 k/s", "400 k/s", "500 k/s"]);
        assert_eq!(labels(3.5e3, "MiB"), ["0 MiB", "1000 MiB", "2000 MiB", "3000 MiB", "4000 MiB"]);
    }

    #[test]
    fn drawings_are_closed_and_escaped() {
        let svg = lines("a < b", "millions", &[("one".to_owned(), vec![1.0, 2.0])]);
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }
}
