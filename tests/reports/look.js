// Says of the page in each frame what does not fit, breaks, fades or is cut; run once all of them are loaded.
const channel = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const luminance = (color) => {
  const [r, g, b] = color.match(/[\d.]+/g).map((x) => channel(x / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const look = (frame, within = "body") => {
  const page = frame.contentDocument;
  const root = page.querySelector(within);
  const wide = frame.clientWidth;
  const style = (element) => frame.contentWindow.getComputedStyle(element);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const color = style(element).backgroundColor;
      if (!/, 0\)$|transparent/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = { width: wide, height: page.documentElement.scrollHeight, least: 99 };
  Object.assign(found, { outside: [], broken: [], faint: [], cut: [] });
  page.querySelectorAll("details").forEach((fold) => (fold.open = true));
  found.scroll = page.documentElement.scrollWidth;
  found.background = style(page.body).backgroundColor;
  for (const element of root.querySelectorAll("*"))
    if (element.getBoundingClientRect().right > wide + 1 && !element.closest(".map, thead, pre, .md-typeset__table"))
      found.outside.push(element.tagName + " " + element.textContent.slice(0, 40));
  const walker = page.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("style, title, .wide thead, .records thead")) continue;
    const drawing = parent.closest("svg");
    if (!parent.closest("pre, .code, svg"))
      for (const word of node.data.matchAll(/[^\s\-–—\/?|]+/g)) {
        const range = page.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const boxes = [...range.getClientRects()].filter((box) => box.width);
        // A longer one has no room on a phone.
        if (new Set(boxes.map((box) => Math.round(box.top))).size > 1 && word[0].length <= 30) found.broken.push(word[0]);
      }
    // Cells of a heat map stand on colours of their own: see the test of their shades.
    if (parent.closest(".map")) continue;
    const ink = drawing ? style(parent).fill : style(parent).color;
    const ratio = contrast(ink, behind(drawing ? drawing.parentElement : parent));
    found.least = Math.min(found.least, ratio);
    if (ratio < 4.5) found.faint.push(node.data.trim().slice(0, 40) + " " + ratio.toFixed(2));
  }
  const figures = [...page.querySelectorAll("svg.dpzv-figure")];
  found.figures = figures.map((svg) => svg.getAttribute("aria-label"));
  for (const svg of figures) {
    const room = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      const sides = [room.left - box.left, box.right - room.right, room.top - box.top, box.bottom - room.bottom];
      if (Math.max(...sides) > 6) found.cut.push(text.textContent);
    }
  }
  return found;
};
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map((frame) => look(frame, frame.dataset.within));
  document.getElementById("out").textContent = JSON.stringify(found);
});
