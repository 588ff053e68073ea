"use strict";
(() => {
  const place = document.getElementById("playground");
  if (!place) return;
  const game = JSON.parse(place.querySelector(".game").textContent);
  const { fields, classes, people, trees } = game;
  const make = (tag, entries = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), entries);
    element.append(...children);
    return element;
  };

  const at = (stretches, code) => stretches.findLast(([start]) => start <= code)[1];

  // The model: numbers of a layer are float32, everything is computed in float64.
  const layers = game.layers.map((layer) => {
    const bytes = Uint8Array.from(atob(layer.weight.numbers), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const weight = Float64Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
    return { ...layer, weight, rows: layer.weight.rows, columns: layer.weight.columns };
  });
  const erf = (x) => {  // a series near 0, a continued fraction far from it
    const z = Math.abs(x);
    if (z > 6) return Math.sign(x);
    let term = z, sum = z;
    if (z < 3) {
      for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum) + 1e-300 && n < 200; n += 1) { term *= -z * z / n; sum += term / (2 * n + 1); }
      return Math.sign(x) * 2 / Math.sqrt(Math.PI) * sum;
    }
    let tail = 0;
    for (let n = 60; n > 0; n -= 1) tail = n / 2 / (z + tail);
    return Math.sign(x) * (1 - Math.exp(-z * z) / Math.sqrt(Math.PI) / (z + tail));
  };
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const curves = {
    relu: (x) => Math.max(0, x),
    leaky_relu: (x, leak) => (x < 0 ? leak * x : x),
    sigmoid,
    tanh: Math.tanh,
    gelu: (x) => x / 2 * (1 + erf(x / Math.SQRT2)),
    silu: (x) => x * sigmoid(x),
    elu: (x) => (x < 0 ? Math.expm1(x) : x),
    softplus: (x) => (x > 20 ? x : Math.log1p(Math.exp(x))),
  };
  const ofNetwork = (codes) => {
    let x = new Float64Array(layers[0].columns);
    game.inputs.forEach(({ offset, block, factor, shift, empty, filled }, i) => {
      if (block) x[offset + codes[i]] = 1;
      else x[offset] = codes[i] === empty ? filled : codes[i] * factor + shift;
    });
    layers.forEach(({ weight, bias, rows, columns, curve, leak }) => {
      const next = new Float64Array(rows);
      for (let r = 0; r < rows; r += 1) {
        let sum = bias[r];
        for (let c = 0; c < columns; c += 1) sum += weight[r * columns + c] * x[c];
        next[r] = curve ? curves[curve](sum, leak) : sum;
      }
      x = next;
    });
    return [...x];
  };
  const ofTrees = (codes) => {
    const total = [...trees.base];
    const cells = trees.cells.map((stretches, i) => at(stretches, codes[i]));
    trees.roots.forEach((root) => {
      let node = root;
      while (trees.attribute[node] >= 0) node = trees.sides[node][cells[trees.attribute[node]]] === "1" ? trees.left[node] : trees.right[node];
      trees.value[node].forEach((value, i) => { total[i] += value; });
    });
    return total;
  };
  const scores = (codes) => {
    const x = trees ? ofTrees(codes) : ofNetwork(codes);
    if (game.link === "sigmoid") return x.map(sigmoid);
    if (game.link !== "softmax") return x;
    const top = Math.max(...x), powers = x.map((value) => Math.exp(value - top)), sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  };
  place.scores = scores;  // for tests

  const chosen = (score) => {
    if (game.decision === "argmax") return score.indexOf(Math.max(...score));
    return game.decision === "threshold" ? Number(score.at(-1) >= game.limit) : -1;
  };
  const shares = (score) => {  // as probabilities, where they are or can be made some
    if (game.link === "softmax" || (score.length > 1 && score.every((s) => s >= 0) && Math.abs(score.reduce((a, b) => a + b) - 1) < 1e-3)) return score;
    if (game.decision === "argmax") return score.map((s) => 1 / score.reduce((sum, other) => sum + Math.exp(other - s), 0));
    if (game.link === "sigmoid") return score;
    return game.decision === "threshold" && game.limit === 0 ? score.map(sigmoid) : null;
  };
  const label = (field, code) => (field.values.length ? field.values[code] : Number((field.low + field.step * code).toPrecision(12)));

  // Whom to begin with: people who were found, then records of the data set.
  const found = [...document.querySelectorAll(".people")].flatMap((part) => {
    const { columns, rows } = JSON.parse(part.textContent);
    return rows.slice(0, 50).map((row) => fields.map((field) => {
      const value = row[columns.indexOf(field.name)];
      return field.values.length ? field.values.indexOf(String(value)) : Math.round((value - field.low) / field.step);
    }));
  }).filter((codes) => codes.every((code, i) => code >= 0 && code < fields[i].size));  // others are not in this domain
  const groups = [["Found by the audit", found], ["Records of the data set", people]].filter(([, rows]) => rows.length);
  const everybody = groups.flatMap(([, rows]) => rows);
  let codes = [...everybody[0]];

  const select = place.querySelector(".who"), form = place.querySelector(".fields"), body = place.querySelector("tbody");
  const said = place.querySelector(".said");
  let number = 0;
  groups.forEach(([name, rows]) => {
    const group = make("optgroup", { label: name });
    rows.forEach((row, i) => { group.append(make("option", { value: number, textContent: `${i + 1}: ${fields.slice(0, 3).map((field, j) => `${field.name} ${label(field, row[j])}`).join(", ")}, …` })); number += 1; });
    select.append(group);
  });
  const controls = fields.map((field, i) => {
    const control = field.values.length
      ? make("select", {}, ...field.values.map((value, code) => make("option", { value: code, textContent: value })))
      : make("input", { type: "number", min: field.low, max: field.low + field.step * (field.size - 1), step: field.step });
    control.addEventListener("input", () => {
      const code = field.values.length ? Number(control.value) : Math.round((Number(control.value) - field.low) / field.step);
      if (!Number.isFinite(code) || control.value === "") return;
      codes[i] = Math.min(field.size - 1, Math.max(0, code));
      show();
    });
    form.append(make("label", { className: field.sensitive ? "sensitive" : "" }, make("bdi", { textContent: field.name }), control));
    return control;
  });
  const fill = () => fields.forEach((field, i) => { controls[i].value = field.values.length ? codes[i] : label(field, codes[i]); });
  // A twin that breaks a rule which the person keeps does not exist.
  const broken = (row) => game.laws.filter(({ when, then }) =>
    when.every(([i, met]) => at(met, row[i])) && !(then.length && then.every(([i, met]) => at(met, row[i]))));
  const MOST = 200;
  const twins = () => {
    let combinations = [codes];
    fields.forEach((field, i) => {
      if (!field.sensitive) return;
      combinations = combinations.flatMap((row) => Array.from({ length: field.size }, (_, code) => row.with(i, code))).slice(0, 20000);
    });
    const own = new Set(broken(codes));
    return combinations.filter((row) => row.some((code, i) => code !== codes[i]) && broken(row).every((law) => own.has(law)));
  };
  const show = () => {
    const own = { row: codes, score: scores(codes) }, others = twins().map((row) => ({ row, score: scores(row) }));
    const rows = [own, ...others];
    const last = rows.map(({ score }) => score.at(-1)), spread = Math.max(...last) - Math.min(...last);
    const laws = broken(codes).map(({ name }) => name);
    let flips = 0;
    const lines = rows.map(({ row, score }) => {
      const which = chosen(score), probabilities = shares(score);
      const flip = game.decision !== "tolerance" && which !== chosen(own.score);
      flips += flip;
      const words = which < 0 ? "" : classes[which] ?? (game.decision === "threshold" ? (which ? `at least ${game.limit}` : `below ${game.limit}`) : `class ${which}`);
      const share = probabilities && (probabilities.length > 1 ? probabilities[game.shown] : game.shown ? probabilities[0] : 1 - probabilities[0]);
      const figure = probabilities ? `${(100 * share).toFixed(1)}%` : String(Number(score.at(-1).toPrecision(6)));
      const who = fields.flatMap((field, i) => (field.sensitive ? [`${field.name} ${label(field, row[i])}`] : [])).join(", ");
      const line = make("tr", { className: flip ? "flips" : "" }, make("th", { scope: "row" }, make("bdi", { textContent: who })), make("td", {}, make("bdi", { textContent: words })), make("td", { className: "figure", textContent: figure }), make("td", { textContent: row === own.row ? "this person" : flip ? "the decision flips" : "" }));
      return line;
    });
    body.replaceChildren(...lines.slice(0, MOST));
    const verdict = game.decision === "tolerance"
      ? `Between the lowest and the highest lie ${Number(spread.toPrecision(4))}; ${spread > game.limit ? "more" : "not more"} than the tolerance of ${game.limit}.`
      : flips ? `${flips} of ${others.length} twins get a different decision.` : "The decision is the same for all.";
    said.textContent = [verdict, rows.length > MOST ? `The first ${MOST} are shown.` : "", laws.length ? `No such record: ${laws.join("; ")}.` : ""].filter(Boolean).join(" ");
  };
  select.addEventListener("input", () => { codes = [...everybody[Number(select.value)]]; fill(); show(); });
  fill();
  show();
  place.hidden = false;
})();
