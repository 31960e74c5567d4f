//! The chart: nanoseconds an object over the number of objects, both axes logarithmic, a panel for each setting; the published
//! figures dashed beside ours.

use crate::chart::{self, COLOURS, put, text};

use super::Row;

const STRATEGIES: [&str; 4] = ["client", "keys", "index", "log"];
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 84.0;
const BELOW: f64 = 74.0;
const PANELS_A_ROW: usize = 3;
const TITLE: &str = "Sums over many objects: nanoseconds an object, one thread";
const TITLE_SIZE: f64 = 15.0;
const PUBLISHED: &str = "published for RAMCloud";

/// A panel: its rows are of one state, value size and selectivity.
type Panel<'a> = (&'static str, u64, f64, Vec<&'a Row>);

/// Draws the rows of one thread.
pub(super) fn draw(rows: &[Row]) -> String {
    let panels = panels(rows);
    let names = names(rows);
    let axes = Axes::of(rows);
    let columns = panels.len().clamp(1, PANELS_A_ROW);
    let lines = panels.len().div_ceil(PANELS_A_ROW).max(1);
    let (width, height) = (columns as f64 * (LEFT + WIDTH) + 24.0, TOP + lines as f64 * (HEIGHT + BELOW));
    let mut elements = String::new();
    let legend_end = legend(&mut elements, &names);
    let width = width.max(legend_end).max(chart::title_end(TITLE, TITLE_SIZE));
    let mut svg = chart::open(width, height);
    put(&mut svg, &format!(r#"<text x="{LEFT}" y="24" font-size="{TITLE_SIZE}">{TITLE}</text>"#));
    svg += &elements;
    for (number, panel) in panels.iter().enumerate() {
        let (column, line) = (number % PANELS_A_ROW, number / PANELS_A_ROW);
        let (x, y) = (LEFT + column as f64 * (LEFT + WIDTH), TOP + line as f64 * (HEIGHT + BELOW));
        axes.draw(&mut svg, x, y, panel);
        for (index, name) in names.iter().enumerate() {
            axes.line(&mut svg, (x, y), COLOURS[index % COLOURS.len()], "", points(&panel.3, name));
            axes.line(&mut svg, (x, y), COLOURS[index % COLOURS.len()], r#" stroke-dasharray="3 4""#, published(&panel.3, name));
        }
    }
    svg + "</svg>\n"
}

fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.common.threads == 1) {
        match panels.iter_mut().find(|panel| (panel.0, panel.1, panel.2) == (row.state, row.common.value_bytes, row.selectivity)) {
            Some(panel) => panel.3.push(row),
            None => panels.push((row.state, row.common.value_bytes, row.selectivity, vec![row])),
        }
    }
    panels
}

/// The strategies, then the peers; the automatic choice is one of the others.
fn names(rows: &[Row]) -> Vec<String> {
    let mut names: Vec<String> = STRATEGIES.iter().map(ToString::to_string).collect();
    for row in rows {
        if row.strategy != "auto" && !names.contains(&row.strategy) {
            names.push(row.strategy.clone());
        }
    }
    names.retain(|name| rows.iter().any(|row| row.strategy == *name));
    names
}

fn points(rows: &[&Row], name: &str) -> Vec<(f64, f64)> {
    rows.iter().filter(|row| row.strategy == name).map(|row| (row.common.keys as f64, row.nanoseconds_per_object)).collect()
}

fn published(rows: &[&Row], name: &str) -> Vec<(f64, f64)> {
    let own = rows.iter().filter(|row| row.strategy == name);
    own.filter_map(|row| Some((row.common.keys as f64, row.document_nanoseconds_per_object?))).collect()
}

/// Draws the legend; where it ends.
fn legend(svg: &mut String, names: &[String]) -> f64 {
    let mut x = LEFT;
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        put(svg, &format!(r#"<rect x="{x:.1}" y="38" width="10" height="10" fill="{colour}"/>"#));
        text(svg, x + 14.0, 47.0, "start", name);
        x += chart::legend_width(name);
    }
    put(svg, &format!(r##"<path d="M{x:.1} 43H{:.1}" stroke="#555" stroke-width="1.5" stroke-dasharray="3 4"/>"##, x + 22.0));
    text(svg, x + 27.0, 47.0, "start", PUBLISHED);
    x + 27.0 + chart::legend_width(PUBLISHED)
}

/// Powers of ten: of objects across, of nanoseconds upwards.
struct Axes {
    across: (f64, f64),
    up: (f64, f64),
}

impl Axes {
    fn of(rows: &[Row]) -> Self {
        let across = rows.iter().map(|row| row.common.keys as f64);
        let up = rows.iter().flat_map(|row| [Some(row.nanoseconds_per_object), row.document_nanoseconds_per_object]).flatten();
        Self { across: powers(across), up: powers(up) }
    }

    fn place(&self, (x, y): (f64, f64), (objects, nanoseconds): (f64, f64)) -> (f64, f64) {
        let part = |value: f64, (low, high): (f64, f64)| (value.max(1e-3).log10() - low) / (high - low);
        (x + WIDTH * part(objects, self.across), y + HEIGHT * (1.0 - part(nanoseconds, self.up)))
    }

    fn draw(&self, svg: &mut String, x: f64, y: f64, panel: &Panel<'_>) {
        let title = format!("{}, {} bytes, {} % asked for", panel.0, panel.1, panel.2 * 100.0);
        put(svg, &format!(r#"<text x="{x:.1}" y="{:.1}" font-size="12">{title}</text>"#, y - 8.0));
        for power in self.up.0 as i32..=self.up.1 as i32 {
            let (_, at) = self.place((x, y), (1.0, 10f64.powi(power)));
            put(svg, &format!(r##"<path d="M{x:.1} {at:.1}h{WIDTH}" stroke="#ddd"/>"##));
            text(svg, x - 6.0, at + 4.0, "end", &nanoseconds(power));
        }
        for power in self.across.0 as i32..=self.across.1 as i32 {
            let (at, _) = self.place((x, y), (10f64.powi(power), 1.0));
            put(svg, &format!(r##"<path d="M{at:.1} {y:.1}v{HEIGHT}" stroke="#eee"/>"##));
            text(svg, at, y + HEIGHT + 16.0, "middle", &count(power));
        }
        text(svg, x + WIDTH / 2.0, y + HEIGHT + 32.0, "middle", "objects in the store");
    }

    fn line(&self, svg: &mut String, corner: (f64, f64), colour: &str, dashes: &str, points: Vec<(f64, f64)>) {
        let places: Vec<_> = points.into_iter().map(|point| self.place(corner, point)).collect();
        let path = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ");
        put(svg, &format!(r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>"#));
        let fill = if dashes.is_empty() { colour } else { "white" };
        for (x, y) in places {
            put(svg, &format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{fill}" stroke="{colour}"/>"#));
        }
    }
}

/// The powers of ten around some values, two different ones.
fn powers(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, 1e-3), |(low, high), value| (f64::min(low, value.max(1e-3)), f64::max(high, value)));
    let (low, high) = (low.min(high).log10().floor(), high.log10().ceil());
    (low, high.max(low + 1.0))
}

fn count(power: i32) -> String {
    match power {
        6.. => format!("{} M", 10u64.pow(power as u32 - 6)),
        3.. => format!("{} k", 10u64.pow(power as u32 - 3)),
        _ => 10u64.pow(power.max(0) as u32).to_string(),
    }
}

fn nanoseconds(power: i32) -> String {
    match power {
        6.. => format!("{} ms", 10u64.pow(power as u32 - 6)),
        3.. => format!("{} µs", 10u64.pow(power as u32 - 3)),
        0.. => format!("{} ns", 10u64.pow(power as u32)),
        _ => format!("{} ns", 10f64.powi(power)),
    }
}
