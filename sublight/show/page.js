"use strict";
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var root = document.documentElement;

  function make(tag, attributes, text) {
    var node = document.createElement(tag);
    Object.keys(attributes || {}).forEach(function (key) { node.setAttribute(key, attributes[key]); });
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function group(n) { return Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ","); }
  function time(ns) {
    var size = Math.abs(ns);
    if (size >= 1e9) return (ns / 1e9).toFixed(3) + " s";
    if (size >= 1e5) return (ns / 1e6).toFixed(3) + " ms";
    if (size >= 1e3) return (ns / 1e3).toFixed(1) + " \u00b5s";
    return Math.round(ns) + " ns";
  }
  function percent(share) {
    if (share > 0 && share < 0.0001) return "< 0.01 %";
    return (100 * share).toFixed(share < 0.01 ? 2 : 1) + " %";
  }

  // ---- light, dark, or what the system says

  var themes = ["auto", "dark", "light"], button = document.getElementById("theme");
  function store(value) { try { localStorage.setItem("sublight-theme", value); } catch (e) { return; } }
  function stored() { try { return localStorage.getItem("sublight-theme"); } catch (e) { return null; } }
  function setTheme(name) {
    if (name === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", name);
    button.textContent = "theme: " + name;
    redraw();
  }
  var theme = Math.max(0, themes.indexOf(stored()));
  button.hidden = false;
  button.addEventListener("click", function () {
    theme = (theme + 1) % themes.length;
    store(themes[theme]);
    setTheme(themes[theme]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // ---- timelines

  var charts = [];
  function redraw() { charts.forEach(function (chart) { chart.draw(); }); }

  function Timeline(box, device) {
    var t = device.timeline, self = this, from = 0, to = t.span, least = Math.max(50, t.grain * 4);
    var lanes = t.lanes.map(function (lane) { return unpack(lane); });
    if (t.steps.length) lanes.unshift({name: "steps", steps: true});
    var canvas = make("canvas", {tabindex: "0", role: "img", "aria-label":
      "Timeline of the window, " + time(t.span) + ". Arrow keys move, plus and minus zoom, 0 shows all. " +
      "The same as tables: where the window went above, the longest stretches below."});
    var tip = make("div", {"class": "tip", hidden: ""});
    var tools = make("div", {"class": "tools"});
    [["\u2212", "zoom out", function () { zoom(2, 0.5); }], ["+", "zoom in", function () { zoom(0.5, 0.5); }],
     ["\u25c2", "earlier", function () { pan(-0.5); }], ["\u25b8", "later", function () { pan(0.5); }],
     ["all", "the whole window", function () { show(0, t.span); }]].forEach(function (tool) {
      var b = make("button", {type: "button", title: tool[1], "aria-label": tool[1]}, tool[0]);
      b.addEventListener("click", tool[2]);
      tools.appendChild(b);
    });
    var status = make("span", {"class": "range", "aria-live": "polite"});
    tools.appendChild(status);
    tools.appendChild(make("span", {"class": "dim"},
      "Drag to zoom; wheel zooms after a click, or with Ctrl. " +
      (t.grain ? "Drawn to " + time(t.grain) + ": what is shorter is put together. " : "") +
      (t.left_out ? t.left_out + (t.left_out === 1 ? " stream is" : " streams are") + " left out. " : "")));
    box.appendChild(tools);
    box.appendChild(canvas);
    box.appendChild(tip);
    box.hidden = false;

    var TOP = 13, LABEL = 15;
    function height(lane) { return lane.steps ? 16 : lane.stream ? 16 : 20; }
    var total = TOP + 6;
    lanes.forEach(function (lane) { lane.y = total + LABEL; total += LABEL + height(lane) + 3; });

    function unpack(lane) {
      var n = lane.s.length, start = new Float64Array(n), at = 0, count = {}, busy = {};
      for (var i = 0; i < n; i++) { at += lane.s[i]; start[i] = at; }
      lane.g[0].forEach(function (row, j) { count[row] = lane.g[1][j]; busy[row] = lane.g[2][j]; });
      return {name: lane.name, stream: lane.stream, start: start, length: lane.d, key: lane.k, count: count, busy: busy};
    }
    function colour(lane, i) {
      if (!lane.stream) return data.colours[lane.key[i]];
      return lane.key[i] < device.parts.length ? data.colours[device.parts[lane.key[i]]] : "#888888";
    }
    function style(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }

    this.draw = function () {
      var width = canvas.clientWidth, ratio = Math.min(window.devicePixelRatio || 1, 3);
      if (!width) return;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(total * ratio);
      canvas.style.height = total + "px";
      var pen = canvas.getContext("2d"), scale = width / (to - from);
      pen.scale(ratio, ratio);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "alphabetic";
      axis(pen, width, scale);
      lanes.forEach(function (lane) {
        pen.fillStyle = style("--bar");
        pen.fillRect(0, lane.y, width, height(lane));
        if (lane.steps) steps(pen, lane, scale); else marks(pen, lane, width, scale);
        pen.fillStyle = style("--dim");
        pen.fillText(lane.name, 1, lane.y - 4);
      });
      outside(pen, width, scale);
      status.dataset.ns = Math.round(to - from);
      status.textContent = "from " + time(t.offset + from) + ", " + time(to - from) + " wide";
    };
    function axis(pen, width, scale) {
      var step = Math.pow(10, Math.floor(Math.log10((to - from) / Math.max(width / 90, 1))));
      [2, 5, 10].some(function (m) { if (step * scale >= 90) return true; step = step * (m === 2 ? 2 : m === 5 ? 2.5 : 2); return false; });
      pen.fillStyle = style("--dim");
      pen.strokeStyle = style("--line");
      var first = Math.ceil((t.offset + from) / step) * step;
      for (var at = first; at < t.offset + to; at += step) {
        var x = (at - t.offset - from) * scale;
        pen.beginPath(); pen.moveTo(x, 2); pen.lineTo(x, total); pen.stroke();
        if (x < width - 50) pen.fillText(tick(at, step), x + 3, 10);
      }
    }
    function tick(at, step) {
      var unit = step >= 1e8 ? [1e9, " s"] : step >= 1e5 ? [1e6, " ms"] : step >= 1e2 ? [1e3, " \u00b5s"] : [1, " ns"];
      var digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
      return (at / unit[0]).toFixed(digits) + unit[1];
    }
    function marks(pen, lane, width, scale) {
      var i = Math.max(0, search(lane.start, from) - 1), h = height(lane), filled = -1, last = "";
      // Neighbours in one pixel and of one colour are drawn once: half a million would take seconds.
      for (; i < lane.start.length && lane.start[i] < to; i++) {
        var x = (lane.start[i] - from) * scale, w = Math.max(lane.length[i] * scale, 0.75), c = colour(lane, i);
        if (x + w < 0 || (c === last && x + w <= filled)) continue;
        var share = lane.busy[i] === undefined ? 1 : lane.busy[i] / Math.max(lane.length[i], 1);
        pen.fillStyle = c;
        pen.globalAlpha = 0.25 + 0.75 * Math.min(share, 1);
        pen.fillRect(Math.max(x, -1), lane.y, w - (w > 3 ? 0.5 : 0), h);
        if (x + w > filled) { filled = x + w; last = c; }
      }
      pen.globalAlpha = 1;
    }
    function steps(pen, lane, scale) {
      t.steps.forEach(function (step, i) {
        var x = Math.max((step[1] - from) * scale, 0), end = (step[2] - from) * scale;
        if (end < 0 || step[1] > to) return;
        pen.globalAlpha = i % 2 ? 0.35 : 0.6;
        pen.fillStyle = style("--dim");
        pen.fillRect(x, lane.y, Math.max(end - x - 1, 1), height(lane));
        pen.globalAlpha = 1;
        if (end - x > 8 * step[0].length + 8) {
          pen.fillStyle = style("--bg");
          pen.fillText(step[0], x + 4, lane.y + 12);
        }
      });
    }
    function outside(pen, width, scale) {
      var before = 0;
      pen.fillStyle = style("--panel");
      t.windows.concat([[t.span, t.span]]).forEach(function (w) {
        if (w[0] > before) {
          pen.globalAlpha = 0.8;
          pen.fillRect((before - from) * scale, TOP, (w[0] - before) * scale, total);
        }
        before = w[1];
      });
      pen.globalAlpha = 1;
    }
    function search(sorted, value) {
      var low = 0, high = sorted.length;
      while (low < high) { var middle = (low + high) >> 1; if (sorted[middle] < value) low = middle + 1; else high = middle; }
      return low;
    }

    function show(start, end) {
      var width = Math.min(Math.max(end - start, Math.min(least, t.span)), t.span);
      from = Math.min(Math.max(start, 0), t.span - width);
      to = from + width;
      self.draw();
    }
    this.show = show;
    function zoom(by, at) { var centre = from + (to - from) * at; show(centre - (centre - from) * by, centre + (to - centre) * by); }
    function pan(by) { var d = (to - from) * by; show(from + d, to + d); }

    canvas.addEventListener("keydown", function (event) {
      var keys = {ArrowLeft: function () { pan(-0.2); }, ArrowRight: function () { pan(0.2); },
        "+": function () { zoom(0.5, 0.5); }, "=": function () { zoom(0.5, 0.5); }, "-": function () { zoom(2, 0.5); },
        "0": function () { show(0, t.span); }, Home: function () { show(0, to - from); },
        End: function () { show(t.span - to + from, t.span); }};
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
    });
    canvas.addEventListener("wheel", function (event) {
      if (!event.ctrlKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 600);
      else zoom(Math.exp(event.deltaY / 300), event.offsetX / canvas.clientWidth);
    }, {passive: false});

    var dragged = null;
    canvas.addEventListener("pointerdown", function (event) {
      dragged = event.offsetX;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", function (event) {
      if (dragged !== null && Math.abs(event.offsetX - dragged) > 3) {
        self.draw();
        var pen = canvas.getContext("2d");
        pen.globalAlpha = 0.2;
        pen.fillStyle = style("--link");
        pen.fillRect(Math.min(dragged, event.offsetX), TOP, Math.abs(event.offsetX - dragged), total);
        pen.globalAlpha = 1;
      }
      hover(event);
    });
    canvas.addEventListener("pointerup", function (event) {
      var start = dragged;
      dragged = null;
      if (start === null || Math.abs(event.offsetX - start) <= 3) return;
      var ns = (to - from) / canvas.clientWidth;
      show(from + Math.min(start, event.offsetX) * ns, from + Math.max(start, event.offsetX) * ns);
    });
    canvas.addEventListener("pointercancel", function () { dragged = null; self.draw(); });
    canvas.addEventListener("pointerleave", function () { tip.hidden = true; });
    canvas.addEventListener("dblclick", function () { show(0, t.span); });

    function hover(event) {
      var lane = lanes.filter(function (l) { return event.offsetY >= l.y - 1 && event.offsetY <= l.y + height(l) + 1; })[0];
      var ns = (to - from) / canvas.clientWidth, at = from + event.offsetX * ns;
      var said = lane && (lane.steps ? step(at) : mark(lane, at, ns));
      tip.hidden = !said;
      if (!said) return;
      tip.textContent = said;
      var left = canvas.offsetLeft + event.offsetX + 14;
      if (left + tip.offsetWidth > box.clientWidth) left = Math.max(4, left - tip.offsetWidth - 26);
      tip.style.left = left + "px";
      tip.style.top = canvas.offsetTop + event.offsetY + 14 + "px";
    }
    function step(at) {
      var found = t.steps.filter(function (s) { return s[1] <= at && at <= s[2]; })[0];
      return found && "step " + found[0] + "\n" + group(found[2] - found[1]) + " ns";
    }
    function mark(lane, at, ns) {
      var i = search(lane.start, at + ns) - 1;
      for (var back = 0; i >= 0 && back < 50; back++, i--) {
        if (lane.start[i] + Math.max(lane.length[i], ns) + ns < at) continue;
        var what = lane.stream ? name(lane.key[i]) : data.keys[lane.key[i]];
        var where = "\nbegins at " + time(t.offset + lane.start[i]);
        if (lane.count[i]) return lane.count[i] + " together, mostly " + what + "\n" + group(lane.busy[i]) + " of " + group(lane.length[i]) + " ns" + where;
        return what + "\n" + group(lane.length[i]) + " ns (" + percent(lane.length[i] / t.span) + ")" + where;
      }
      return null;
    }
    function name(row) {
      if (row >= device.rows.length) return "(a name that is not in the table)";
      var text = data.names[device.rows[row][0][0]];
      return text.length > 200 ? text.slice(0, 200) + "\u2026" : text;
    }
    new ResizeObserver(function () { self.draw(); }).observe(box);
  }

  // ---- the table of kernels: sorted, filtered, a page at a time

  var PAGE = 50;
  function Kernels(box, device) {
    var columns = device.columns, rows = device.rows, shown = rows.slice(), page = 0, sorted = -1, down = true;
    columns.forEach(function (c, i) { if (c[0] === "time") sorted = i; });
    var texts = rows.map(function (row) {
      return row.map(function (v, i) {
        return columns[i][1] === "name" ? data.names[v[0]] + " " + data.names[v[1]] : columns[i][1] === "text" ? v || "" : "";
      }).join(" ").toLowerCase();
    });
    rows.forEach(function (row, i) { row.at = i; });
    box.textContent = "";
    var tools = make("div", {"class": "tools"});
    var filter = make("input", {type: "search", placeholder: "filter by name, category, library", size: "30", "aria-label": "filter the table"});
    var count = make("span", {"class": "count", "aria-live": "polite"});
    var back = make("button", {type: "button"}, "previous"), forth = make("button", {type: "button"}, "next");
    var copy = make("button", {type: "button"}, "copy as TSV");
    [filter, count, back, forth, copy].forEach(function (node) { tools.appendChild(node); });
    var frame = make("div", {"class": "scroll"}), table = make("table", {"aria-label": "kernels"});
    var head = make("tr"), body = make("tbody"), top = make("thead");
    columns.forEach(function (column, i) {
      var cell = make("th", {scope: "col"}), b = make("button", {type: "button"}, column[0]);
      if (numeric(i)) cell.className = "n";
      b.addEventListener("click", function () {
        down = sorted === i ? !down : numeric(i);
        sorted = i;
        page = 0;
        arrange();
      });
      cell.appendChild(b);
      head.appendChild(cell);
    });
    top.appendChild(head); table.appendChild(top); table.appendChild(body); frame.appendChild(table);
    box.appendChild(tools); box.appendChild(frame);

    var most = {};
    function largest(i) {
      if (most[i] === undefined) most[i] = rows.reduce(function (m, row) { return Math.max(m, row[i] || 0); }, 1e-9);
      return most[i];
    }
    function numeric(i) { return ["ns", "count", "share"].indexOf(columns[i][1]) >= 0; }
    function value(row, i) { return columns[i][1] === "name" ? data.names[row[i][0]] : row[i]; }
    function arrange() {
      var words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      shown = rows.filter(function (row) { return words.every(function (w) { return texts[row.at].indexOf(w) >= 0; }); });
      shown.sort(function (a, b) {
        var x = value(a, sorted), y = value(b, sorted);
        if (x === null || y === null) return x === y ? a.at - b.at : x === null ? 1 : -1;   // absent last, either way
        var order = x < y ? -1 : x > y ? 1 : 0;
        return (down ? -order : order) || a.at - b.at;
      });
      Array.prototype.forEach.call(head.children, function (cell, i) {
        if (i === sorted) cell.setAttribute("aria-sort", down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
        cell.firstChild.textContent = columns[i][0] + (i === sorted ? (down ? " \u25be" : " \u25b4") : "");
      });
      render();
    }
    function shownAs(v, kind) {
      if (v === null) return "\u2013";
      return kind === "ns" ? time(v) : kind === "share" ? percent(v) : kind === "count" ? group(v) : String(v);
    }
    function render() {
      var pages = Math.max(1, Math.ceil(shown.length / PAGE)), first = page * PAGE;
      body.textContent = "";
      shown.slice(first, first + PAGE).forEach(function (row) {
        var line = make("tr");
        columns.forEach(function (column, i) {
          var cell = make("td", {"class": numeric(i) ? "n" : "w"});
          if (column[1] === "name") named(cell, row, i); else cell.textContent = shownAs(row[i], column[1]);
          if (column[1] === "ns" && row[i] !== null) cell.title = group(row[i]) + " ns";
          if (column[1] === "share" && row[i] !== null) {
            cell.classList.add("share");
            cell.style.setProperty("--w", (80 * row[i] / largest(i)).toFixed(1) + "%");
          }
          line.appendChild(cell);
        });
        body.appendChild(line);
      });
      var ns = columns.map(function (c) { return c[0]; }).indexOf("time");
      var sum = shown.reduce(function (s, row) { return s + row[ns]; }, 0);
      count.textContent = group(shown.length) + (shown.length < rows.length ? " of " + group(rows.length) : "") + " names, " +
        time(sum) + (pages > 1 ? " \u00b7 page " + (page + 1) + " of " + pages : "");
      back.hidden = forth.hidden = pages < 2;
      back.disabled = page === 0;
      forth.disabled = page >= pages - 1;
    }
    function named(cell, row, i) {
      cell.className = "name";
      var swatch = make("span", {"class": "swatch k" + device.parts[row.at]});
      var b = make("button", {type: "button", "aria-expanded": "false", title: "show the whole name"});
      cell.appendChild(swatch);
      b.appendChild(document.createTextNode(data.names[row[i][0]]));
      b.addEventListener("click", function () {
        var open = cell.querySelector("code");
        if (open) open.remove(); else cell.appendChild(make("code", {}, data.names[row[i][1]]));
        b.setAttribute("aria-expanded", open ? "false" : "true");
      });
      cell.appendChild(b);
    }
    function tsv() {
      var lines = [columns.map(function (c) { return c[0] + (c[1] === "ns" ? " (ns)" : ""); })];
      shown.forEach(function (row) {
        lines.push(columns.map(function (c, i) { return c[1] === "name" ? data.names[row[i][1]] : row[i] === null ? "" : row[i]; }));
      });
      return lines.map(function (line) { return line.map(function (v) { return String(v).replace(/[\t\r\n]/g, " "); }).join("\t"); }).join("\n") + "\n";
    }
    copy.addEventListener("click", function () {
      function said(text) { copy.textContent = text; setTimeout(function () { copy.textContent = "copy as TSV"; }, 1500); }
      if (!navigator.clipboard) { said("not allowed here"); return; }
      navigator.clipboard.writeText(tsv()).then(function () { said("copied"); }, function () { said("not allowed here"); });
    });
    filter.addEventListener("input", function () { page = 0; arrange(); });
    back.addEventListener("click", function () { page--; render(); });
    forth.addEventListener("click", function () { page++; render(); });
    arrange();
  }

  // ---- a device is set up when it is first looked at

  var byDevice = {};
  function setUp(i) {
    if (byDevice[i] !== undefined) return;
    byDevice[i] = null;
    var device = data.devices[i];
    if (device.timeline) {
      byDevice[i] = new Timeline(document.getElementById("lanes" + i), device);
      charts.push(byDevice[i]);
      byDevice[i].draw();
    }
    if (device.rows.length) new Kernels(document.getElementById("kernels" + i), device);
  }
  data.devices.forEach(function (_, i) {
    var section = document.getElementById("d" + i);
    if (section.tagName !== "DETAILS" || section.open) setUp(i);
    section.addEventListener("toggle", function () { if (section.open) setUp(i); }, false);
  });
  function opened() {
    var target = /^#d\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  }
  addEventListener("hashchange", opened);
  opened();
  Array.prototype.forEach.call(document.querySelectorAll("button.goto"), function (b) {
    b.hidden = false;
    b.addEventListener("click", function () {
      var at = +b.dataset.at, length = +b.dataset["for"], chart = byDevice[b.dataset.device];
      if (!chart) return;
      chart.show(at - 2 * length, at + 3 * length);
      document.getElementById("lanes" + b.dataset.device).scrollIntoView({block: "nearest"});
    });
  });
  setTheme(themes[theme]);
})();
