// Shows the runs of a folder. All text of a run goes into the page as text, never as markup.
"use strict";
const nonce = document.currentScript.nonce;
const waiting = new Map();
const known = new Map();
let shown = { folder: "", runs: [], unreadable: [] };

// What a file of data hands over: the list as "runs", a run under its own name.
globalThis.dpzvTake = (name, text) => {
  const value = JSON.parse(text);
  known.set(name, value);
  if (name === "runs") {
    shown = value;
    start();
  }
};

const load = (file) => {
  if (!waiting.has(file))
    waiting.set(file, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.nonce = nonce;
      script.src = file;
      script.onload = resolve;
      script.onerror = () => {
        waiting.delete(file);
        reject(new Error("This run is not in the list any more. Reload the page."));
      };
      document.head.append(script);
    }));
  return waiting.get(file);
};
const details = async (id) => {
  if (!known.has(id)) await load(`runs/${id}.js`);
  return known.get(id);
};

const el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  return put(made, ...children);
};
const put = (parent, ...children) => {
  parent.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== "" && child !== 0));
  return parent;
};
const main = () => {
  const page = document.getElementById("main");
  page.replaceChildren();
  return page;
};
const counted = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
const option = (value, text, chosen) => el("option", { value, selected: value === chosen }, text);

// Risk: the same formulas as reports/risk.py. `curve` is mu, epsilon and delta, or points alpha and beta.
const normal = (x) => {
  if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
  let sum = x, last = 0, term = x;
  for (let i = 3; sum !== last; i += 2) {
    last = sum;
    term *= (x * x) / i;
    sum += term;
  }
  return 0.5 + (sum * Math.exp(-0.5 * x * x)) / Math.sqrt(2 * Math.PI);
};
const quantile = (p) => {
  let low = -8, high = 8;
  for (let i = 0; i < 80; i++) {
    const middle = (low + high) / 2;
    if (normal(middle) < p) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
};
const missed = ({ epsilon, delta }, alpha) =>
  Math.max(0, 1 - delta - Math.exp(epsilon) * alpha, Math.exp(-epsilon) * (1 - delta - alpha));
const between = ({ alpha, beta }, rate) => {
  const after = alpha.findIndex((x) => x >= rate);
  if (after <= 0) return beta[after === 0 ? 0 : beta.length - 1];
  const share = (rate - alpha[after - 1]) / (alpha[after] - alpha[after - 1]);
  return beta[after - 1] + share * (beta[after] - beta[after - 1]);
};
// The true positive rate of the best test at a false positive rate.
const detected = (curve, alpha) => {
  if (alpha <= 0 && curve.mu !== undefined) return 0;
  if (curve.mu !== undefined) return Math.max(alpha, alpha >= 1 ? 1 : normal(quantile(alpha) + curve.mu));
  if (curve.alpha !== undefined) return Math.max(alpha, 1 - between(curve, alpha));
  return 1 - missed(curve, alpha);
};
// The Bayes risk: the least chance of a wrong guess where the second case has a prior.
const wrong = (curve, prior) => {
  const blind = Math.min(prior, 1 - prior);
  if (curve.mu !== undefined) {
    if (curve.mu === 0 || blind === 0) return blind;
    const cut = curve.mu / 2 + Math.log((1 - prior) / prior) / curve.mu;
    return (1 - prior) * normal(-cut) + prior * normal(cut - curve.mu);
  }
  const points = curve.alpha
    ? curve.alpha.map((alpha, i) => [alpha, curve.beta[i]])
    : [0, ((1 - curve.delta) * Math.exp(-curve.epsilon)) / (1 + Math.exp(-curve.epsilon)), 1 - curve.delta, 1]
        .map((alpha) => [alpha, missed(curve, alpha)]);
  return Math.min(blind, ...points.map(([alpha, beta]) => (1 - prior) * alpha + prior * beta));
};
// The chance of the second case once the attacker's test has said so.
const posterior = (curve, prior, alpha) => {
  const right = prior * detected(curve, alpha);
  return right + (1 - prior) * alpha === 0 ? prior : right / (right + (1 - prior) * alpha);
};
globalThis.dpzvRisk = { detected, wrong, posterior };

// Shares in percent at three digits, rounded in the direction that stays true.
const nine = (x) => Number(x.toPrecision(9));
const percent = (share, round) => {
  const value = nine(100 * share);
  const digits = value >= 10 || value === 0 ? 1 : Math.min(6, Math.ceil(-Math.log10(value)) + 1);
  return `${Number((round(nine(value * 10 ** digits)) / 10 ** digits).toPrecision(9))}%`;
};
const atLeast = (share) => percent(share, Math.floor);
const atMost = (share) => percent(share, Math.ceil);

// Plotly reads markup and templates in texts: both are taken out of what comes from a run.
const inert = (text) =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("%{", "% {");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");
const palette = () => dark.matches
  ? ["#ff9460", "#7fb2ff", "#7fd6a1", "#e5c25c", "#d59bff", "#5fd3d3", "#ff9dbb", "#b9bec9"]
  : ["#b83a08", "#1f5fbf", "#1c7a45", "#8a6100", "#7a3bb8", "#0f7474", "#b02a5b", "#5b606b"];
let redraw = [];
dark.addEventListener("change", () => redraw.forEach((draw) => draw()));
const plot = async (place, traces, layout) => {
  try {
    await load("plotly.js");
  } catch {
    place.replaceWith(el("p", { class: "hint" }, "The curves cannot be drawn: plotly.js did not load. Reload the page."));
    return;
  }
  const draw = () => {
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule"), zerolinecolor: colour("--rule"), automargin: true };
    const wide = place.clientWidth > 560;
    return Plotly.react(place, traces(), {
      paper_bgcolor: colour("--page"), plot_bgcolor: colour("--page"), margin: { l: 10, r: 10, t: 10, b: 10 },
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: wide ? 14 : 12 },
      legend: { orientation: "h", y: -0.22, x: 0 }, dragmode: false, ...layout,
      hoverlabel: { bgcolor: colour("--soft"), bordercolor: colour("--muted"), font: { color: colour("--ink") }, namelength: -1, align: "left" },
      xaxis: { ...axis, ...layout.xaxis, fixedrange: true }, yaxis: { ...axis, ...layout.yaxis, fixedrange: true },
    }, { displayModeBar: false, responsive: true });
  };
  await draw();
  redraw.push(draw);
};

const table = (columns, rows, style = "plain") =>
  el("div", { class: "box", tabindex: "0" }, el("table", { class: style },
    el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { "data-label": columns[i] }, cell)))))));
const facts = (pairs) =>
  el("dl", { class: "facts" }, pairs.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text))));
const code = (text) => el("pre", { class: "code" }, text.split(" ").flatMap((word) => [el("span", {}, word), " "]));
const verdict = (run) => el("span", { class: run.alarming ? "tag alarming" : "tag" }, run.word);
const title = (run) => run.system + (run.data ? ` on ${run.data}` : "");

// The list.
const COLUMNS = [
  ["date", (run) => run.date, (run) => run.date.slice(0, 16) || "no date"],
  ["version", (run) => run.commit + run.version],
  ["command", (run) => run.command],
  ["system", (run) => run.system],
  ["data", (run) => run.data],
  ["attacker", (run) => run.attacker],
  ["verdict", (run) => run.word],
  ["measured ε", (run) => run.measured[0], (run) => run.measured[1]],
  ["proven ε", (run) => run.proven[0], (run) => run.proven[1]],
  ["success", (run) => run.success[0], (run) => run.success[1]],
  ["baseline", (run) => run.baseline[0], (run) => run.baseline[1]],
];
const NUMBERS = new Set(["measured ε", "proven ε", "success", "baseline"]);
const list = { filter: "", column: "date", down: true, chosen: new Set() };
const compared = () => shown.runs.filter((run) => list.chosen.has(run.id));

const rowOf = (run) => {
  const cells = COLUMNS.map(([name, key, text]) => {
    const value = (text || key)(run) ?? "";
    const parts = {
      date: () => [el("a", { href: `#run/${run.id}` }, value)],
      version: () => [run.commit && el("span", {}, run.commit), run.commit ? el("span", { class: "small" }, run.version) : run.version],
      verdict: () => [verdict(run), el("span", { class: "small" }, run.command === "verify" || !run.claimed[1] ? run.about.slice(0, 80) : `claim ${run.claimed[1]}`)],
      success: () => [value, run.metric && el("span", { class: "small" }, run.metric)],
    };
    const long = /\S{25}/.test(value) ? " long" : "";
    const style = `${name}${NUMBERS.has(name) ? " number" : ""}${value === "" ? " blank" : long}`;
    return el("td", { class: style, "data-label": name }, parts[name] && value ? parts[name]() : value || "–");
  });
  const box = el("input", {
    type: "checkbox", "aria-label": `Compare the run of ${run.date || run.folder}`, onchange: () => {
      list.chosen[box.checked ? "add" : "delete"](run.id);
      row.classList.toggle("chosen", box.checked);
      links();
    },
  });
  box.checked = list.chosen.has(run.id);
  const row = el("tr", { class: box.checked ? "chosen" : "" }, el("td", { class: "check", "data-label": "compare" }, box), cells);
  const words = [run.folder, run.metric, run.about, ...run.points.map((point) => point.line)];
  const text = [...COLUMNS.map(([, key, said]) => (said || key)(run)), run.commit, ...words].join(" ").toLowerCase();
  return { run, row, text };
};

const showList = () => {
  const rows = shown.runs.map(rowOf);
  const body = el("tbody");
  const status = el("p", { class: "hint", role: "status" });
  const heads = COLUMNS.map(([name]) => el("th", { scope: "col", class: NUMBERS.has(name) ? "number" : "" },
    el("button", { type: "button", onclick: () => sort(name, list.column === name ? !list.down : NUMBERS.has(name) || name === "date") }, name)));
  const sort = (name, down) => {
    Object.assign(list, { column: name, down });
    const [, key] = COLUMNS.find(([each]) => each === name);
    const absent = (value) => value === null || value === undefined || value === "";
    rows.sort((one, other) => {
      const [a, b] = [key(one.run), key(other.run)];
      if (absent(a) || absent(b)) return absent(a) - absent(b);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
    body.append(...rows.map(({ row }) => row));
    heads.forEach((head, i) => {
      head.removeAttribute("aria-sort");
      if (COLUMNS[i][0] === name) head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  };
  const filter = () => {
    const words = list.filter.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    status.textContent = words.length ? `${left.toLocaleString("en")} of ${counted(rows.length, "run")}` : counted(rows.length, "run");
  };
  const search = el("input", { type: "search", placeholder: "refuted digits label_direct", oninput: () => { list.filter = search.value; filter(); } });
  search.value = list.filter;
  const order = el("select", { onchange: () => sort(order.value, NUMBERS.has(order.value) || order.value === "date") },
    COLUMNS.map(([name]) => option(name, name, list.column)));
  const compare = el("button", { type: "button", class: "main", id: "compare", onclick: () => { location.hash = `compare/${[...list.chosen].join(",")}`; } });
  put(main(),
    el("h1", {}, "Runs"),
    el("div", { class: "bar" }, el("label", { class: "grow" }, "Filter: all words must occur", search),
      el("label", { class: "phone" }, "Sort by", order), compare),
    status,
    rows.length ? el("table", { class: "list" }, el("thead", {}, el("tr", {}, el("th", { scope: "col", "aria-label": "compare" }), heads)), body)
      : el("p", {}, "This folder holds no run that can be read. Commands such as dpzv-audit attack write one."),
    shown.unreadable.length ? el("h2", {}, `Not readable: ${counted(shown.unreadable.length, "result")}`) : "",
    el("ul", { class: "unreadable" }, shown.unreadable.map((run) => el("li", {}, `${run.folder}: ${run.unreadable}`))),
  );
  sort(list.column, list.down);
  filter();
  links();
};

// One run.
const curvePlot = (parent, curves) => {
  const place = el("div", { class: "plot" });
  put(parent, el("h2", {}, curves.name ? `Trade-off curves: ${curves.name}` : "Trade-off curves"),
    el("p", { class: "hint" }, "How many true cases the best test detects (true positives) at each rate of false alarms (false positives). On the diagonal it learns nothing. A claim, or a proof, allows no test above its curve. Point at a curve to read its values."),
    place, curves.note ? el("p", { class: "hint" }, `${curves.note[0].toUpperCase()}${curves.note.slice(1)}.`) : "");
  const traces = () => {
    const colours = palette();
    const rates = curves.alpha.map((alpha, i) => [alpha, i]).sort(([a], [b]) => a - b);
    const line = (values) => ({ x: rates.map(([alpha]) => alpha), y: rates.map(([, i]) => 1 - values[i]), mode: "lines", type: "scatter" });
    const made = [{ x: [0, 1], y: [0, 1], mode: "lines", name: "no information", line: { color: colour("--muted"), width: 1, dash: "dot" }, hoverinfo: "skip" }];
    if (curves.band) {
      const edge = { width: 0 };
      const name = inert(curves.band.name);
      const said = (end) => ({ name, line: edge, hovertemplate: `%{y:.1%}<extra>${name}, ${end}</extra>` });
      made.push({ ...line(curves.band.high), ...said("low"), showlegend: false });
      made.push({ ...line(curves.band.low), ...said("high"), fill: "tonexty", fillcolor: `${colours[0]}33` });
    }
    const looks = { claimed: [colour("--ink"), "dash"], proven: [colour("--muted"), "dashdot"], measured: [colours[0], "solid"] };
    Object.entries(curves.lines).forEach(([name, values], i) => {
      const [color, dash] = Object.hasOwn(looks, name) ? looks[name] : [colours[i % 8], "solid"];
      made.push({ ...line(values), name: inert(name), hovertemplate: "%{y:.1%}", line: { color, dash, width: 2.2 } });
    });
    return made;
  };
  return plot(place, traces, {
    hovermode: "x unified",
    xaxis: { title: { text: "false positive rate" }, range: [0, 1], tickformat: ".0%", unifiedhovertitle: { text: "false positives %{x:.1%}" }, hoverformat: ".1%" },
    yaxis: { title: { text: "true positive rate" }, range: [0, 1.01], tickformat: ".0%" },
  });
};

const BASES = {
  measured: ["shown by the audit", "at least", atLeast],
  claimed: ["allowed by the claim", "at most", atMost],
  proven: ["allowed by the proof", "at most", atMost],
};
const slider = (name, attributes, said, moved) => {
  const output = el("output");
  const input = el("input", { type: "range", ...attributes, oninput: () => { output.textContent = said(Number(input.value)); moved(); } });
  output.textContent = said(Number(input.value));
  return { input, label: el("label", {}, el("span", {}, `${name}: `, output), input) };
};
const slid = { prior: "0.5", rate: "-2" };
const sliders = (parent, risks) => {
  let risk = risks[0];
  const out = el("div");
  const choose = el("select", { onchange: () => { risk = risks[Number(choose.value)]; show(); } },
    risks.map((each, i) => option(String(i), each.name, "0")));
  const rate = (value) => 10 ** value;
  const prior = slider("Prior, the chance of the second case before the attacker looks", { min: "0.01", max: "0.99", step: "0.01", value: slid.prior, id: "prior" },
    (value) => `${Math.round(100 * value)}%`, () => show());
  const alarms = slider("False positive rate, false alarms that the attacker accepts", { min: "-4", max: "-0.3", step: "0.05", value: slid.rate, id: "rate" },
    (value) => percent(rate(value), Math.round), () => show());
  const show = () => {
    Object.assign(slid, { prior: prior.input.value, rate: alarms.input.value });
    const [p, alpha] = [Number(prior.input.value), rate(Number(alarms.input.value))];
    const bases = Object.entries(BASES).filter(([name]) => risk.curves[name]);
    const blind = Math.max(p, 1 - p);
    const rows = [
      ["right guesses", atMost(blind), (curve) => 1 - wrong(curve, p)],
      [`true positives at ${percent(alpha, Math.round)} false positives`, percent(alpha, Math.round), (curve) => detected(curve, alpha)],
      ["posterior: chance of the second case after an alarm", atMost(p), (curve) => posterior(curve, p, alpha)],
    ];
    const said = bases.map(([name, [, bound, round]]) => {
      const curve = risk.curves[name];
      const subject = { measured: "The audit shows", claimed: "The claim allows", proven: "The proof allows" }[name];
      return `${subject}: the best guess ${risk.case} is right ${bound} ${round(1 - wrong(curve, p))} of the time `
        + `(without the messages: ${atMost(blind)}). After an alarm the second case has a chance of ${bound} `
        + `${round(posterior(curve, p, alpha))}, ${p === 0.5 ? "where it was" : "up from"} ${atMost(p)} before.`;
    });
    put((out.replaceChildren(), out),
      el("div", { class: "said" }, el("ul", {}, said.map((text) => el("li", {}, text)))),
      table(["of the best attacker", "without the messages", ...bases.map(([, [name]]) => name)],
        rows.map(([name, none, value]) => [name, none, ...bases.map(([base, [, bound, round]]) => `${bound} ${round(value(risk.curves[base]))}`)])),
      risk.basis && risk.curves.measured ? el("p", { class: "hint" }, `The audit's numbers hold ${risk.basis}.`) : "",
    );
  };
  put(parent,
    el("p", { class: "hint" }, "The two cases are those that the claim compares: the attacker sees the messages of one of them and guesses which it was."),
    risks.length > 1 ? el("div", { class: "bar" }, el("label", {}, "Claim", choose)) : "",
    el("div", { class: "sliders" }, prior.label, alarms.label), out);
  show();
};

const showRun = async (id) => {
  const run = await details(id);
  if (run.unreadable) {
    put(main(), el("h1", {}, run.folder), el("p", {}, `${run.folder}: ${run.unreadable}`));
    return;
  }
  const { head } = run;
  const columns = head.rows.length ? Object.keys(head.rows[0]) : [];
  const page = main();
  put(page,
    el("h1", {}, title(run)),
    el("p", { class: "hint" }, [head.kind, run.date && `${run.date} UTC`, run.commit && `commit ${run.commit}`, run.version && `dpzv-audit ${run.version}`].filter(Boolean).join(" · ")),
    el("p", { class: "subject" }, head.subject),
    el("p", { class: "verdict" }, el("strong", { class: run.alarming ? "word alarming" : "word" }, `${run.word}: ${run.about}`)),
    head.meaning ? el("p", { class: "means" }, head.meaning) : "",
    el("ul", { class: "notes" }, head.notes.map((note) => el("li", {}, note))),
    head.why ? el("p", {}, head.why) : "",
    facts(Object.entries(head.facts)),
    columns.length ? [el("h2", {}, head.caption || "Results"), table(columns, head.rows.map((row) => columns.map((name) => row[name])))] : "",
    head.more.map((text) => el("p", { class: "line" }, `${text}.`)),
    head.next ? el("div", { class: "next" }, el("p", {}, el("strong", {}, "What to do next. "), head.next.words), head.next.command ? code(head.next.command) : "") : "",
  );
  if (run.risks.length) {
    put(page, el("h2", {}, "In plain words"));
    sliders(page, run.risks);
  }
  const drawn = run.curves.slice(0, 6).map((curves) => curvePlot(page, curves));
  put(page,
    run.curves.length > 6 ? el("p", { class: "hint" }, `${run.curves.length - 6} more claims have curves; report.html in the run folder draws them.`) : "",
    el("h2", {}, "Settings"),
    run.again ? [el("p", { class: "hint" }, "This command repeats the run:"), code(run.again)] : "",
    el("details", {}, el("summary", {}, "All settings"), el("div", { class: "folded" }, table(["setting", "value"], Object.entries(run.settings), "settings"))),
    el("details", {}, el("summary", {}, "All numbers"), el("div", { class: "folded" }, table(["number", "value"], Object.entries(run.numbers).map(([name, [text]]) => [name, text]), "settings"))),
    run.unknown.length ? el("p", { class: "hint" }, `This version does not know these parts of the result: ${run.unknown.join(", ")}.`) : "",
    el("p", { class: "hint" }, `Folder: ${shown.folder}/${run.folder}. Its report.html is the page to hand on.`),
  );
  await Promise.all(drawn);
};

// Side by side.
const differing = (runs, pick) => {
  const names = [...new Set(runs.flatMap((run) => Object.keys(pick(run))))];
  return names.filter((name) => new Set(runs.map((run) => JSON.stringify(pick(run)[name] ?? null))).size > 1);
};
const showCompared = async (ids) => {
  const runs = (await Promise.all(ids.map(details))).filter((run) => run && !run.unreadable);
  const page = main();
  list.chosen = new Set(runs.map((run) => run.id));
  links();
  if (runs.length < 2) {
    put(page, el("h1", {}, "Compare"), el("p", {}, "Choose two or more runs in the list: each row has a box."), el("p", {}, el("a", { href: "#" }, "To the list")));
    return;
  }
  const names = runs.map((run, i) => `${i + 1}. ${run.date.slice(0, 16) || run.folder}`);
  const side = (rows) => table(["", ...names], rows, "differ");
  const cell = (values, name) => {
    const texts = values.map((value) => (value === undefined ? "–" : value[0]));
    const tied = values.some((value, i) => values.some((other, j) => value && other && i !== j && value[0] === other[0] && value[1] !== other[1]));
    return [name, ...(tied ? values.map((value) => (value === undefined ? "–" : value[1])) : texts)];
  };
  const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
  const settings = differing(runs, (run) => run.settings);
  const numbers = differing(runs, (run) => run.numbers);
  const common = (name) => runs.every((run) => Object.hasOwn(run.numbers, name));
  const [everywhere, elsewhere] = [numbers.filter(common), numbers.filter((name) => !common(name))];
  const numbered = (names) => names.map((name) => cell(runs.map((run) => own(run.numbers, name)), name));
  put(page,
    el("h1", {}, `${runs.length} runs side by side`),
    side([
      ["run", ...runs.map((run) => el("a", { href: `#run/${run.id}` }, title(run)))],
      ["command", ...runs.map((run) => run.command)],
      ["attacker", ...runs.map((run) => run.attacker || "–")],
      ["verdict", ...runs.map((run) => el("span", {}, verdict(run), run.about ? `: ${run.about}` : ""))],
      ["measured ε", ...runs.map((run) => run.measured[1] || "–")],
      ["proven ε", ...runs.map((run) => run.proven[1] || "–")],
      ["success", ...runs.map((run) => [run.success[1] || "–", run.metric && ` (${run.metric})`].join(""))],
      ["baseline", ...runs.map((run) => run.baseline[1] || "–")],
    ]),
    el("h2", {}, "Settings that differ"),
    settings.length ? side(settings.map((name) => [name, ...runs.map((run) => own(run.settings, name) ?? "–")])) : el("p", {}, "None: the runs have the same settings."),
    el("h2", {}, "Numbers that differ"),
    everywhere.length ? side(numbered(everywhere)) : el("p", {}, "None of the numbers that all of these runs have."),
    elsewhere.length ? el("details", {}, el("summary", {}, `${counted(elsewhere.length, "number")} that not all of these runs have`),
      el("div", { class: "folded" }, side(numbered(elsewhere)))) : "",
  );
};

// Epsilon over time.
const MOST_LINES = 8;
const showEpsilon = async () => {
  const lines = new Map();
  for (const run of shown.runs)
    for (const point of run.points) {
      if (!lines.has(point.line)) lines.set(point.line, []);
      lines.get(point.line).push({ ...point, run });
    }
  const ordered = [...lines.keys()].sort((a, b) => lines.get(b).length - lines.get(a).length || (a < b ? -1 : 1));
  const page = main();
  const place = el("div", { class: "plot", id: "epsilon" });
  const hint = el("p", { class: "hint", role: "status" });
  const axis = el("select", { id: "axis", onchange: () => draw() }, option("date", "date"), option("commit", "commit"));
  const which = el("select", { id: "line", onchange: () => draw() },
    option("", `all ${ordered.length} (the ${Math.min(MOST_LINES, ordered.length)} with most runs are drawn)`), ordered.map((name, i) => option(String(i), `${name} (${lines.get(name).length})`)));
  put(page, el("h1", {}, "Epsilon over time"));
  if (!ordered.length) {
    put(page, el("p", {}, "No run here has an epsilon: claims, audits and accounts have one."));
    return;
  }
  put(page,
    el("p", {}, "Each system or claim has one colour. Dots on a solid line: measured, epsilon is at least this. Triangles on a dotted line: proven, epsilon is at most this. Dashed: claimed. A dot above the dashed line contradicts the claim."),
    el("div", { class: "bar" }, el("label", {}, "By", axis), el("label", { class: "grow" }, "System or claim", which)), place, hint);
  const chosen = () => {
    const key = axis.value === "date" ? (run) => run.date : (run) => run.commit;
    const names = which.value === "" ? ordered.slice(0, MOST_LINES) : [ordered[Number(which.value)]];
    return { key, own: names.map((name) => [name, lines.get(name).filter(({ run }) => key(run)).sort((a, b) => (a.run.date < b.run.date ? -1 : 1))]), names };
  };
  const traces = () => {
    const { key, own } = chosen();
    const looks = [
      ["measured", { width: 2.2 }, "circle"],
      ["proven", { dash: "dot", width: 1.5 }, "triangle-down"],
      ["claimed", { dash: "dash", width: 1.5 }, "line-ew-open"],
    ];
    return own.flatMap(([name, points], i) => {
      const color = palette()[ordered.indexOf(name) % 8];
      let first = true;
      return looks.flatMap(([kind, line, symbol]) => {
        const having = points.filter((point) => point[kind] !== null);
        if (!having.length) return [];
        const legend = first;
        first = false;
        return [{
          x: having.map(({ run }) => key(run)), y: having.map((point) => point[kind]), mode: "lines+markers", type: "scatter", cliponaxis: false, name: inert(name), legendgroup: String(i), showlegend: legend,
          line: { ...line, color }, marker: { symbol, size: 9, color, line: { color, width: 1.5 } },
          text: having.map(({ run, word }) => inert(`${run.date.slice(0, 16)}${run.commit ? `, commit ${run.commit}` : ""}${word ? `, ${word}` : ""}`)),
          hovertemplate: `${kind} ε %{y:.4~g}<br>%{text}<extra>${inert(name)}</extra>`,
        }];
      });
    });
  };
  const draw = () => {
    const { own, names } = chosen();
    const points = names.reduce((sum, name) => sum + lines.get(name).length, 0);
    const drawn = own.reduce((sum, [, each]) => sum + each.length, 0);
    const why = axis.value === "date" ? "no date in the name of their folder" : "no commit in the name of a folder above theirs";
    hint.textContent = drawn < points ? `${counted(points - drawn, "point")} left out: ${why}.` : `${counted(points, "point")}.`;
    redraw = [];
    const ordering = axis.value === "date" ? { type: "date" } : { type: "category", categoryorder: "array", categoryarray: [...new Set(own.flatMap(([, each]) => each.map(({ run }) => run)).sort((a, b) => (a.date < b.date ? -1 : 1)).map((run) => run.commit))] };
    return plot(place, traces, { hovermode: "closest", xaxis: ordering, yaxis: { title: { text: "ε" }, rangemode: "tozero" } });
  };
  await draw();
};

// What an epsilon means.
const showMeaning = () => {
  const page = main();
  const out = el("div");
  const number = (id, value) => el("input", { type: "number", id, value, min: "0", step: "any", oninput: () => show() });
  const [epsilon, delta] = [number("own-epsilon", "1"), number("own-delta", "0.00001")];
  const show = () => {
    const [e, d] = [epsilon.valueAsNumber, delta.valueAsNumber];
    out.replaceChildren();
    if (!(e >= 0 && e <= 100 && d >= 0 && d < 1)) {
      out.append(el("p", {}, "Epsilon is a number from 0 to 100, and delta one from 0 to below 1."));
      return;
    }
    sliders(out, [{ name: "", case: "between two neighbouring data sets", basis: "", curves: { claimed: { epsilon: e, delta: d } } }]);
  };
  put(page,
    el("h1", {}, "What an epsilon means"),
    el("p", {}, "An epsilon limits how well the best attacker tells two neighbouring data sets apart. Move the sliders to see what that is in guesses. The page of each run has the same sliders for its own curves."),
    el("div", { class: "bar" }, el("label", {}, "ε (epsilon)", epsilon), el("label", {}, "δ (delta)", delta)), out);
  show();
};

const VIEWS = [["", "Runs"], ["compare", "Compare"], ["epsilon", "Epsilon over time"], ["meaning", "What an epsilon means"]];
const route = () => location.hash.slice(1).split("/");
const links = () => {
  const [view] = route();
  const chosen = compared().length;
  document.getElementById("views").replaceChildren(el("ul", {}, VIEWS.map(([name, text]) => {
    const target = name === "compare" ? `#compare/${[...list.chosen].join(",")}` : `#${name}`;
    return el("li", {}, el("a", { href: target, "aria-current": view === name ? "page" : null }, name === "compare" ? `${text} (${chosen})` : text));
  })));
  const button = document.getElementById("compare");
  if (button) {
    button.disabled = chosen < 2;
    button.textContent = chosen < 2 ? "Choose two runs to compare" : `Compare ${chosen} runs`;
  }
};
const show = async () => {
  const [view, rest = ""] = route();
  redraw = [];
  links();
  try {
    if (view === "run") await showRun(rest);
    else if (view === "compare") await showCompared(rest.split(",").filter(Boolean));
    else if (view === "epsilon") await showEpsilon();
    else if (view === "meaning") showMeaning();
    else showList();
  } catch (error) {
    put(main(), el("p", { role: "alert" }, error.message));
  }
  document.body.dataset.shown = location.hash || "#";
};
const start = () => {
  document.getElementById("folder").textContent = shown.folder;
  addEventListener("hashchange", () => { scrollTo(0, 0); show(); });
  show();
};
