// Nodes of the page's document: text goes into them as text only. A column of a table is {name, num: right-aligned}.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const kind = (column) => (column.num ? "num" : "");
  return el("div", { class: "scroll" }, el("table", { class: "stack" },
    el("caption", { class: "sr" }, caption),
    el("thead", {}, el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: kind(column) }, column.name)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, index) =>
      el("td", { class: kind(columns[index]), "data-label": columns[index].name }, ...[cell].flat())))))));
}
