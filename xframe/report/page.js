"use strict";
/* Draws the charts of a report: inflates the library that the page carries, and puts in the reader's colours. */
(() => {
  const root = document.documentElement; // its data tell when charts were there, in ms
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plots = [...document.querySelectorAll(".plot")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const pointer = matchMedia("(pointer: fine)");
  const PAPER = { "@text": "#000", "@soft": "#555", "@line": "#ccc", "@page": "#fff" };
  const PAPER_WIDTH = 940; // fits A4 and Letter on their side
  const NARROW = 600;
  const LEGEND = 70;
  const LINE = 48; // letters of a heading above a bar that fit a phone

  async function library() {
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  function screen() {
    const style = getComputedStyle(root);
    return Object.fromEntries(Object.keys(PAPER).map((k) => [k, style.getPropertyValue(k.replace("@", "--")).trim()]));
  }

  function coloured(value, colours) {
    if (typeof value === "string") return colours[value] ?? value;
    if (Array.isArray(value)) return value.map((v) => coloured(v, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, colours)]));
  }

  function draw(plot, colours, width) {
    const { data, layout } = coloured(figures[plot.dataset.figure], colours);
    const narrow = (width ?? plot.clientWidth) < NARROW;
    const size = narrow ? 11 : 13;
    if (narrow) layout.height += layout.showlegend === false ? 0 : LEGEND; // where its entries are below one another
    Object.assign(layout, {
      autosize: width === undefined,
      dragmode: pointer.matches ? "zoom" : false, // a finger scrolls the page
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size, color: colours["@text"] },
    });
    for (const one of layout.annotations ?? []) {
      one.font = { ...one.font, size };
      if (narrow && one.text.replace(/<.*?>/g, "").length > LINE) one.text = one.text.replace("  <b>", "<br><b>");
    }
    if (width !== undefined) layout.width = width;
    return Plotly.react(plot, data, layout, { responsive: true, displayModeBar: false });
  }

  async function start() {
    for (const plot of plots) plot.style.minHeight = `${figures[plot.dataset.figure].layout.height}px`; // nothing jumps
    try {
      await library();
      const near = plots.filter((plot) => plot.getBoundingClientRect().top < 1.5 * innerHeight);
      for (const plot of near) await draw(plot, screen());
      root.dataset.opened = Math.round(performance.now());
      for (const plot of plots.filter((one) => !near.includes(one))) {
        await new Promise((done) => setTimeout(done)); // the reader first
        await draw(plot, screen());
      }
    } catch (error) {
      for (const plot of plots) {
        plot.textContent = `This browser does not draw the chart (${error}); its numbers are below.`;
        plot.classList.add("failed");
        plot.style.minHeight = "";
      }
      return;
    }
    dark.addEventListener("change", () => plots.forEach((plot) => draw(plot, screen())));
    let closed = [];
    addEventListener("beforeprint", () => {
      closed = [...document.querySelectorAll("details.numbers:not([open])")];
      closed.forEach((one) => (one.open = true));
      plots.forEach((plot) => draw(plot, PAPER, PAPER_WIDTH));
    });
    addEventListener("afterprint", () => {
      closed.forEach((one) => (one.open = false));
      plots.forEach((plot) => draw(plot, screen()));
    });
    root.dataset.drawn = Math.round(performance.now());
  }
  start();
})();
