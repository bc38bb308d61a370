"""How reports look: colours for light and dark paper, dashes, markers, hatches, text sizes."""

from __future__ import annotations

__all__ = ["COLOURS", "DASHES", "HATCHES", "PAGE_STYLE", "SVG_STYLE", "VARIABLES"]

#: Colours that also people with colour blindness tell apart: on light and on dark paper.
_LIGHT = (
    *("#0b6bb0", "#c2510c", "#00805c", "#a8467f"),
    *("#946800", "#6650a8", "#4d7510", "#5b6470"),
)
_DARK = (
    *("#62b0ee", "#f2935a", "#40cba0", "#e79dca"),
    *("#e3b341", "#b3a2ee", "#a5d05f", "#b3bcc7"),
)
COLOURS = len(_LIGHT)
#: Dash patterns of lines: seven, as there are eight colours and six markers, so that lines which
#: share one of these differ in another.
DASHES = ("", "9 4", "2 3", "12 3 2 3", "5 2 1 2 1 2", "16 6", "6 2")
#: What is drawn over a band's colour, in an 8 x 8 tile: path data, and the width of its stroke.
HATCHES = (
    ("", 0.0),
    ("M-1,9 L9,-1 M-1,1 L1,-1 M7,9 L9,7", 1.6),
    ("M0,4 H8", 1.6),
    ("M-1,-1 L9,9 M-1,7 L1,9 M7,-1 L9,1", 1.6),
    ("M4,0 V8", 1.6),
    ("M2,2 h.01 M6,6 h.01", 2.6),
    ("M0,0 L8,8 M8,0 L0,8", 1.2),
    ("M0,2 H8 M0,6 H8", 1.2),
    ("M0,4 H8 M4,0 V8", 1.2),
    ("M2,0 V8 M6,0 V8", 1.2),
    ("M0,6 L4,2 L8,6", 1.4),
    ("M1,4 h3 M5,0 h3 M5,8 h3", 1.8),
)


def _variables(colours: tuple[str, ...], ink: str, soft: str, rule: str, paper: str) -> str:
    palette = ";".join(f"--c{number}:{colour}" for number, colour in enumerate(colours))
    return f"--ink:{ink};--soft:{soft};--rule:{rule};--paper:{paper};{palette}"


_ON_LIGHT = _variables(_LIGHT, "#1c2128", "#59636e", "#d5dae0", "#ffffff")
_ON_DARK = _variables(_DARK, "#e8ebef", "#a3adb8", "#3a424c", "#14181d")
#: The CSS variables of a page or a picture on its own; paper is always light.
VARIABLES = (
    f":root{{color-scheme:light dark;{_ON_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_ON_DARK}}}}}"
    f"@media print{{:root{{color-scheme:light;{_ON_LIGHT}}}}}"
)


def _painted(selector: str, prop: str, plain: str, variable: str) -> str:
    # Viewers that know no CSS variables skip the second declaration and keep the first.
    return f"{selector}{{{prop}:{plain};{prop}:var(--{variable})}}"


SVG_STYLE = "".join(
    (
        ".plot text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif}",
        _painted(".plot text", "fill", "#1c2128", "ink"),
        # A halo keeps words readable where lines run under them.
        ".plot text{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}",
        _painted(".plot text", "stroke", "#ffffff", "paper"),
        _painted(".plot .soft", "fill", "#59636e", "soft"),
        ".plot .small{font-size:11px}.plot .head{font-size:15px;font-weight:600}",
        ".plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:butt}",
        _painted(".plot .rule", "stroke", "#d5dae0", "rule"),
        _painted(".plot .axis", "stroke", "#59636e", "soft"),
        _painted(".plot .paper", "fill", "#ffffff", "paper"),
        _painted(".plot .edge", "stroke", "#ffffff", "paper"),
        _painted(".plot .inkline", "stroke", "#1c2128", "ink"),
        *(_painted(f".plot .s{n}", "stroke", c, f"c{n}") for n, c in enumerate(_LIGHT)),
        *(_painted(f".plot .f{n}", "fill", c, f"c{n}") for n, c in enumerate(_LIGHT)),
    )
)

PAGE_STYLE = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1100px;padding:24px 20px 60px;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
h1{font-size:26px;line-height:1.2;margin:0 0 4px}h2{font-size:19px;margin:34px 0 8px}
h3{font-size:15px;margin:18px 0 4px}p{margin:6px 0;max-width:80ch}.soft{color:var(--soft)}
.lead{font-size:17px}.about{color:var(--soft);font-weight:400;
font-size:13px;line-height:1.3;display:inline-block}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);padding:0 0 6px}
th,td{padding:6px 8px;border-bottom:1px solid var(--rule);text-align:right;vertical-align:top}
th{font-weight:600}thead th{color:var(--soft);vertical-align:bottom}
th:first-child,td.words,th.words{text-align:left}td.words{min-width:18em}
th[scope=row]{overflow-wrap:anywhere;min-width:8.5em;max-width:20em}td{white-space:nowrap}
td.words{white-space:normal;overflow-wrap:anywhere}table.narrow{width:auto}
table.narrow th[scope=row]{min-width:5em}table.narrow td.words{min-width:10em}
figure{margin:18px 0 26px;padding:0;break-inside:avoid}
figure svg{display:block;width:100%;min-width:640px;height:auto}
figcaption{color:var(--soft);max-width:90ch;margin-top:4px}
.problems{border-left:4px solid var(--c1);padding:6px 14px;margin:14px 0}.problems ul{margin:4px 0;
padding-left:20px}details{border-top:1px solid var(--rule);padding:8px 0}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px;
border:1px solid var(--rule);padding:10px}
@media print{body{max-width:none;padding:0;font-size:12px}.scroll{overflow:visible}
figure svg{min-width:0}}
"""
