"use strict";
(() => {
  const PER_PAGE = 15;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Links to panels become tabs.
  const tabs = all(".tabs a"), panels = tabs.map((tab) => document.querySelector(tab.getAttribute("href")));
  const choose = (chosen) => tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", i === chosen);
    tab.tabIndex = i === chosen ? 0 : -1;
    panels[i].hidden = i !== chosen;
  });
  tabs.forEach((tab, i) => {
    tab.setAttribute("role", "tab");
    tab.id = `${panels[i].id}-tab`;
    tab.setAttribute("aria-controls", panels[i].id);
    panels[i].setAttribute("role", "tabpanel");
    tab.addEventListener("click", (event) => { event.preventDefault(); choose(i); });
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const to = { ArrowRight: i === last ? 0 : i + 1, ArrowLeft: i === 0 ? last : i - 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(to);
      tabs[to].focus();
    });
  });
  if (tabs.length) {
    tabs[0].parentElement.setAttribute("role", "tablist");
    const follow = () => {
      const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const at = panels.findIndex((panel) => target && panel.contains(target));
      choose(at < 0 ? Math.max(0, panels.findIndex((panel) => !panel.hidden)) : at);
      if (at >= 0) target.scrollIntoView();
    };
    window.addEventListener("hashchange", follow);
    follow();
  }

  // Commands can be copied; where the clipboard is closed to a page, they are selected instead.
  all(".copy").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  });

  const describe = (list, columns, values, changed) => {
    const changes = new Map(changed.map(([attribute, from, to]) => [attribute, `${from} → ${to}`]));
    list.replaceChildren(...columns.map((column, i) => {
      const item = document.createElement("div"), term = document.createElement("dt"), value = document.createElement("dd");
      const words = document.createElement(changes.has(column) ? "mark" : "bdi");
      term.append(Object.assign(document.createElement("bdi"), { textContent: column }));
      words.textContent = changes.get(column) ?? values[i] ?? "not known";
      value.append(words);
      item.append(term, value);
      return item;
    }));
  };

  // Findings: search, order, pages. All rows are in the page already; the script only hides and moves them.
  all(".finder").forEach((finder) => {
    const told = finder.querySelector(".people")?.textContent ?? '{"columns": [], "rows": [], "changed": []}';
    const { columns, rows: people, changed } = JSON.parse(told), perPage = +(finder.dataset.page ?? PER_PAGE);
    const body = finder.querySelector("tbody"), status = finder.querySelector(".status"), pages = finder.querySelector(".pages");
    const input = finder.querySelector("input"), heads = all("thead th", finder);
    const [back, next] = [pages.querySelector(".back"), pages.querySelector(".next")];
    const entries = all("tr", body).map((row) => {
      const values = people[row.dataset.i];
      const cells = [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent);
      const words = [row.querySelector(".sentence")?.textContent, row.textContent, ...columns.map((c, i) => `${c}=${values[i]}`)];
      row.querySelector("details")?.addEventListener("toggle", ({ target }) => {
        const list = target.querySelector("dl");
        if (target.open && !list.children.length) describe(list, columns, values, changed[row.dataset.i]);
      });
      return { row, cells, words: words.join("\n").toLowerCase() };
    });
    let shown = entries, page = 0, order = null;

    const draw = () => {
      const count = Math.max(1, Math.ceil(shown.length / perPage));
      page = Math.min(Math.max(page, 0), count - 1);
      const first = page * perPage, visible = shown.slice(first, first + perPage);
      entries.forEach(({ row }) => { row.hidden = true; });
      visible.forEach(({ row }) => { row.hidden = false; });
      body.append(...shown.map(({ row }) => row));
      const range = shown.length ? `${first + 1} to ${first + visible.length} of ${shown.length}` : "None";
      status.textContent = shown.length < entries.length ? `${range} that match, of ${entries.length}` : range;
      pages.querySelector("span").textContent = `Page ${page + 1} of ${count}`;
      pages.hidden = count === 1;
      back.disabled = page === 0;
      next.disabled = page === count - 1;
    };
    const update = () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      shown = entries.filter(({ words }) => wanted.every((word) => words.includes(word)));
      if (order) {
        const { column, kind, sign } = order;
        const compare = kind === "number"
          ? (a, b) => (a === "" ? -Infinity : +a) - (b === "" ? -Infinity : +b) || 0
          : (a, b) => a.localeCompare(b);
        shown.sort((a, b) => sign * compare(a.cells[column], b.cells[column]));
      }
      page = 0;
      draw();
    };
    heads.forEach((head, column) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      // On paper the heading is plain words: Chromium repeats no buttons at the top of the next page.
      const printed = Object.assign(document.createElement("span"), { className: "printed", textContent: head.textContent });
      head.replaceChildren(button, printed);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "descending" : "ascending");
        order = { column, kind: head.dataset.sort, sign: up ? -1 : 1 };
        update();
      });
    });
    input.addEventListener("input", update);
    back.addEventListener("click", () => { page -= 1; draw(); });
    next.addEventListener("click", () => { page += 1; draw(); });
    finder.querySelector(".controls").hidden = false;
    draw();
  });

  // On paper every section is open; the lists of all attributes and of more pairs stay on the screen.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details.fold:not([open])");
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
})();
