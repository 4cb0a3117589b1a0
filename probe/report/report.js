"use strict";
// Long tables: of each only the rows that are seen are in the page. Names come from anybody: they are only ever text.
(function () {
  var HEIGHT = 26, SPARE = 12;
  var KINDS = ["same", "different", "missing", "extra", "not_observed", "not_compared", "unreadable"];

  // What people read is English, unless the page has the words of another language.
  function say(text, values) {
    var known = document.getElementById("words");
    var said = (known && JSON.parse(known.textContent)[text]) || text;
    return said.replace(/\{(\w+)\}/g, function (_, name) { return values[name]; });
  }

  function element(parent, tag, kind, text) {
    var made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function value(column, row) {
    return column.codes ? column.known[column.codes[row]] : column.values[row];
  }

  function shown(one) {
    return one === null ? "" : String(one);
  }

  function matches(columns, rows, needle) {
    var wanted = needle.toLowerCase(), found = new Uint8Array(rows), row, at;
    columns.forEach(function (column) {
      function has(one) { return shown(one).toLowerCase().indexOf(wanted) >= 0; }
      if (column.codes) {
        var known = column.known.map(has);
        for (row = 0; row < rows; row++) if (known[column.codes[row]]) found[row] = 1;
      } else {
        for (row = 0; row < rows; row++) if (!found[row] && has(column.values[row])) found[row] = 1;
      }
    });
    var list = [];
    for (at = 0; at < rows; at++) if (found[at]) list.push(at);
    return list;
  }

  function build(place) {
    var data = JSON.parse(document.getElementById(place.dataset.grid).textContent);
    var columns = data.columns, chosen = null, bar = element(place, "div", "bar");
    var search = element(bar, "input");
    search.type = "search";
    search.placeholder = say("Find in {rows} rows", { rows: data.rows });
    search.setAttribute("aria-label", search.placeholder);
    var label = element(bar, "label"), only = element(label, "input");
    only.type = "checkbox";
    label.appendChild(document.createTextNode(say(" only what differs", {})));
    var jump = element(bar, "button", "", say("first difference", {}));
    jump.type = "button";
    jump.hidden = data.first === null;
    var count = element(bar, "span", "soft count");
    var inner = element(element(place, "div", "sideways"), "div", "inner");
    inner.setAttribute("role", "table");
    inner.style.setProperty("--columns", columns.map(function (column) { return column.width; }).join(" "));
    var head = element(inner, "div", "head");
    head.setAttribute("role", "row");
    columns.forEach(function (column) { element(head, "span", "", column.name).setAttribute("role", "columnheader"); });
    var view = element(inner, "div", "rows"), space = element(view, "div", "space"), seen = element(space, "div", "seen");
    view.tabIndex = 0;
    var from = -1, to = -1;

    function total() { return chosen ? chosen.length : data.rows; }

    function draw() {
      var first = Math.max(0, Math.floor(view.scrollTop / HEIGHT) - SPARE);
      var last = Math.min(total(), Math.ceil((view.scrollTop + view.clientHeight) / HEIGHT) + SPARE);
      if (first === from && last === to) return;
      from = first;
      to = last;
      seen.textContent = "";
      seen.style.transform = "translateY(" + first * HEIGHT + "px)";
      for (var at = first; at < last; at++) {
        var row = chosen ? chosen[at] : at, status = value(data.status, row);
        var line = element(seen, "div", "row" + (KINDS.indexOf(status) >= 0 ? " " + status : ""));
        line.setAttribute("role", "row");
        line.setAttribute("aria-rowindex", row + 1);
        if (row === data.first) line.className += " here";
        columns.forEach(function (column) {
          var text = shown(value(column, row)), cell = element(line, "span", "", text);
          cell.setAttribute("role", "cell");
          if (text.length > 12) cell.title = text;
        });
      }
    }

    function refresh() {
      from = to = -1;
      space.style.height = total() * HEIGHT + "px";
      count.textContent = total() === data.rows
        ? say("{rows} rows", { rows: data.rows }) : say("{found} of {rows} rows", { found: total(), rows: data.rows });
      draw();
    }

    function choose() {
      chosen = search.value ? matches(columns, data.rows, search.value) : null;
      if (only.checked) {
        var all = chosen || Array.from({ length: data.rows }, function (_, row) { return row; });
        chosen = all.filter(function (row) { return ["different", "missing", "extra"].indexOf(value(data.status, row)) >= 0; });
      }
      view.scrollTop = 0;
      refresh();
    }

    function show_first() {
      var at = chosen ? chosen.indexOf(data.first) : data.first;
      if (at < 0) { search.value = ""; only.checked = false; choose(); at = data.first; }
      view.scrollTop = Math.max(0, at * HEIGHT - view.clientHeight / 3);
      draw();
    }

    var waiting = 0;
    search.addEventListener("input", function () { clearTimeout(waiting); waiting = setTimeout(choose, 120); });
    only.addEventListener("change", choose);
    jump.addEventListener("click", show_first);
    view.addEventListener("scroll", draw, { passive: true });
    window.addEventListener("resize", draw);
    refresh();
    if (data.first !== null) show_first();
    document.querySelectorAll("[data-without-script]").forEach(function (table) {
      if (table.dataset.withoutScript === place.dataset.grid) table.hidden = true;
    });
  }

  document.querySelectorAll("[data-grid]").forEach(build);
})();
