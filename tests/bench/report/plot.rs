//! The findings that have a goal, as a picture: a bar for each, as long as what was measured is many times what
//! the goal allows. A bar that ends left of the line has met it.

use std::fmt::Write;

use super::{Line, Occasion, number};

const WIDTH: f64 = 820.0;
/// Where bars begin and end.
const LEFT: f64 = 330.0;
const RIGHT: f64 = 660.0;
const ROW: f64 = 20.0;
const TOP: f64 = 44.0;
/// What the ends of the scale stand for, in times of the goal. It is logarithmic.
const LEAST: f64 = 0.25;
const MOST: f64 = 64.0;

/// An SVG that is read on light and on dark ground.
pub fn svg(occasion: &Occasion, lines: &[Line]) -> String {
    let lines: Vec<&Line> = lines.iter().filter(|line| line.goal.is_some()).collect();
    let height = TOP + ROW * lines.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <style>\n\
         text {{ fill: #24292f }} .faint {{ fill: #6e7781 }} .grid {{ stroke: #8c959f; stroke-opacity: .35 }}\n\
         .goal {{ stroke: #24292f }} .met {{ fill: #2da44e }} .missed {{ fill: #d4802a }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .faint {{ fill: #9198a1 }} \
         .goal {{ stroke: #e6edf3 }} }}\n\
         </style>\n\
         <text x=\"8\" y=\"16\" class=\"faint\">measured, as a multiple of the goal (right: measured / goal; green: met); {}</text>\n",
        escaped(&occasion.told())
    );
    let bottom = height - 8.0;
    for tick in [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0] {
        let (x, class) = (place(tick), if tick == 1.0 { "goal" } else { "grid" });
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.0}\" x2=\"{x:.0}\" y1=\"{}\" y2=\"{bottom}\" class=\"{class}\"/>\
             <text x=\"{x:.0}\" y=\"34\" text-anchor=\"middle\" class=\"faint\">{tick}</text>",
            TOP - 6.0
        );
    }
    for (row, line) in lines.iter().enumerate() {
        let Some(goal) = &line.goal else { continue };
        let y = TOP + ROW * row as f64;
        let class = if goal.is_met() { "met" } else { "missed" };
        let (label, value) = match (&line.limit, &line.ratio) {
            (Some((name, _)), Some((ratio, _))) if goal.is_ratio => {
                (format!("{} / {name}", line.title), format!("{:.2}x", ratio.median))
            }
            _ => (line.title.clone(), format!("{} {}", number(line.ours), line.unit)),
        };
        let value = format!("{value} / {}", goal.shown);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"12\" rx=\"2\" class=\"{class}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{value}</text>",
            LEFT - 8.0,
            y + 12.0,
            escaped(&label),
            y + 2.0,
            place(goal.share) - LEFT,
            RIGHT + 12.0,
            y + 12.0,
        );
    }
    svg + "</svg>\n"
}

/// Where so many times the goal stand on the scale.
fn place(share: f64) -> f64 {
    let along = (share.clamp(LEAST, MOST) / LEAST).log2() / (MOST / LEAST).log2();
    LEFT + along.max(0.01) * (RIGHT - LEFT)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
