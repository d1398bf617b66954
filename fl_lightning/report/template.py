"""The page: one HTML file with everything in it, in light and dark, wide and narrow."""

HTML = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="fl-lightning report">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --shade: #f3f5f7;
  --link: #0a5fc2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --soft: #a0a8b1; --paper: #14171a; --line: #363c43; --shade: #1f2428; --link: #79b4ff; }
}
body { margin: 0 auto; padding: 1rem; max-width: 70rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
a { color: var(--link); }
nav ul { columns: 16rem; padding-left: 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption.hidden { position: absolute; clip-path: inset(50%); }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; white-space: normal; min-width: 9rem; max-width: 22rem; font-weight: 500; }
th span { white-space: nowrap; }
thead th, thead th:first-child { min-width: 4.5rem; font-weight: 600; background: var(--shade); vertical-align: bottom;
  white-space: normal; }
.note, figcaption { color: var(--soft); font-size: .9rem; max-width: 46rem; }
figure { margin: 1rem 0 1.5rem; }
figure svg { width: 100%; height: auto; max-width: 44rem; display: block; }
figure svg.wide { max-width: 100%; min-width: 44rem; }
ul.remarks { padding-left: 1.2rem; overflow-wrap: anywhere; }
summary { cursor: pointer; }
code { overflow-wrap: anywhere; }
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
{% for paragraph in lead %}<p>{{ paragraph }}</p>
{% endfor %}</header>
<nav aria-label="Sections"><ul>
{% for section in sections %}<li><a href="#section-{{ loop.index }}">{{ section.title }}</a></li>
{% endfor %}<li><a href="#runs">Runs</a></li>
</ul></nav>
<main>
{% for section in sections %}
<section aria-labelledby="section-{{ loop.index }}">
<h2 id="section-{{ loop.index }}">{{ section.title }}</h2>
{% for drawing in section.drawings %}{{ figure(drawing) }}{% endfor %}
{% for table in section.tables %}{{ table_of(table, section.title) }}{% endfor %}
</section>
{% endfor %}
<section aria-labelledby="runs">
<h2 id="runs">Runs</h2>
{% for table in runs %}{{ table_of(table, "Runs") }}{% endfor %}
{% if remarks %}<h3>Skipped or incomplete</h3>
<ul class="remarks">{% for remark in remarks %}<li>{{ remark }}</li>{% endfor %}</ul>{% endif %}
<details><summary>Settings that all runs share</summary>
<dl>{% for key, value in settings %}<dt><code>{{ key }}</code></dt><dd><code>{{ value }}</code></dd>{% endfor %}</dl>
</details>
</section>
</main>
</body>
</html>
"""

TABLE = """\
<div class="scroll" role="region" aria-label="{{ table.title }}" tabindex="0">
<table>
<caption{% if table.title == heading %} class="hidden"{% endif %}>{{ table.title }}</caption>
<thead><tr>{% for column in table.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}{% set number = loop.index0 %}<tr>{% for cell in row %}\
{% if loop.first %}<th scope="row">{% for part in cell.split(", ") %}<span>{{ part }}{% if not loop.last %},{% endif %}</span> \
{% endfor %}</th>\
{% elif (number, loop.index0) in table.bold %}<td><strong>{{ cell }}</strong></td>\
{% elif (number, loop.index0) in table.underlined %}<td><u>{{ cell }}</u></td>\
{% else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody>
</table>
</div>
{% if table.note %}<p class="note">{{ table.note }}</p>{% endif %}
"""

FIGURE = """\
<figure>
<div class="scroll"{% if drawing.wide %} role="region" aria-label="{{ drawing.title }}" tabindex="0"{% endif %}>{{ svg }}</div>
<figcaption>{{ drawing.caption }}</figcaption>
</figure>
"""
