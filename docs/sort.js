// Sorts a table by a column when its head is clicked, or pressed by Enter or Space.

const FEWEST_ROWS = 5;

// The number that a cell begins with; NaN for what begins with none.
function number(text) {
  const found = text.replace(/,(?=\d{3}\b)/g, "").match(/^[-+−]?\d+(\.\d+)?(e[-+]?\d+)?/i);
  return found ? Number(found[0].replace("−", "-")) : NaN;
}

// Numbers in their order, other cells behind them; columns without numbers in the order of their words.
function compared(one, other, numeric) {
  if (!numeric) return one.localeCompare(other, undefined, { numeric: true });
  const [first, second] = [number(one), number(other)];
  if (isNaN(first) || isNaN(second)) return isNaN(first) - isNaN(second);
  return first - second;
}

function sort(table, column, head) {
  const body = table.tBodies[0];
  const text = (row) => row.cells[column].textContent.trim();
  const rows = [...body.rows];
  const numeric = rows.filter((row) => !isNaN(number(text(row)))).length > rows.length / 2;
  const known = head.getAttribute("aria-sort");
  const down = known ? known === "ascending" : numeric;
  rows.sort((one, other) => {
    const missing = numeric && isNaN(number(text(one))) !== isNaN(number(text(other)));
    return compared(text(one), text(other), numeric) * (down && !missing ? -1 : 1);
  });
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

for (const table of document.querySelectorAll("article table")) {
  const heads = table.tHead ? [...table.tHead.rows[0].cells] : [];
  if (table.tBodies.length !== 1 || table.tBodies[0].rows.length < FEWEST_ROWS) continue;
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, column, head));
    head.append(button);
  });
}
