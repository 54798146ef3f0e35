// What the page can do beyond showing itself: a curve tells its values under the pointer, and its name in a legend hides
// or shows it in all figures. For `data-axes`, `data-of` and the classes, see `Plot.svg`.
const shown = (value, decimals) => value.toLocaleString("en", decimals === null
  ? { maximumSignificantDigits: 4 } : { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
const tip = Object.assign(document.createElement("div"), { id: "tip", role: "status", ariaLive: "polite", hidden: true });
document.body.append(tip);
// A finger leaves what it has touched; then the values stay until the next touch.
document.addEventListener("pointerdown", () => (tip.hidden = true), true);

function points(curve) {
  const places = [];
  for (const path of curve.querySelectorAll(":scope > path"))
    for (const [, x, y] of path.getAttribute("d").matchAll(/(-?[\d.]+) (-?[\d.]+)/g)) places.push([+x, +y]);
  const marks = places.length ? [] : [...curve.querySelectorAll("use")];
  places.push(...marks.map((each) => [+each.getAttribute("x"), +each.getAttribute("y")]));
  return places.sort(([x], [other]) => x - other);
}

for (const svg of document.querySelectorAll("svg[data-axes]")) {
  const axes = JSON.parse(svg.dataset.axes);
  const curves = [...svg.querySelectorAll(".curve")].map((curve) => [curve, points(curve)]).filter(([, places]) => places.length);
  const tell = (name, place) => {
    tip.hidden = false;
    const values = axes.map(([label, [from, to], [begin, end], decimals], i) => {
      const share = (place[i] - begin) / (end - begin);
      const value = decimals === null ? from * (to / from) ** share : from + share * (to - from);
      return label && `${label}: ${shown(value, decimals)}`;
    });
    tip.textContent = [name, ...values].filter(Boolean).join("\n");
    const { x, y } = new DOMPoint(...place).matrixTransform(svg.getScreenCTM());
    const half = tip.offsetWidth / 2;
    const middle = Math.min(Math.max(x, half), document.documentElement.clientWidth - half);
    tip.style.left = `${middle + scrollX}px`;
    tip.style.top = `${y + scrollY}px`;
    tip.style.setProperty("--shift", `${x - middle}px`); // of the mark at the point
  };
  const point = (event) => {
    const pointer = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = Infinity, name, place;
    for (const [curve, places] of curves)
      for (const each of curve.classList.contains("off") ? [] : places) {
        const distance = Math.hypot(each[0] - pointer.x, each[1] - pointer.y);
        if (distance < nearest) [nearest, name, place] = [distance, curve.dataset.of, each];
      }
    tip.hidden = nearest > 40;
    if (!tip.hidden) tell(name, place);
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => (tip.hidden ||= event.pointerType === "mouse"));
  if (curves.length) svg.tabIndex = 0;
  let line = 0, at = -Infinity; // the shown point's x
  const leave = () => [at, tip.hidden] = [-Infinity, true];
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    const [begin, end] = axes[0][2], step = event.shiftKey ? 1e-3 : (end - begin) / 50;
    const goal = { ArrowLeft: at - step, ArrowRight: at + step, ArrowUp: at, ArrowDown: at, Home: -Infinity, End: Infinity }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    const known = curves.filter(([curve]) => !curve.classList.contains("off"));
    // Up and down scroll until a key has shown a point.
    if (!known.length || goal === undefined || (across && at === -Infinity)) return;
    event.preventDefault();
    line = (line + across + known.length) % known.length;
    const [curve, places] = known[line];
    const place = event.key === "ArrowLeft"
      ? places.findLast(([x]) => x <= goal) ?? places[0] : places.find(([x]) => x >= goal) ?? places.at(-1);
    at = place[0];
    tell(curve.dataset.of, place);
  });
  svg.addEventListener("blur", leave);
}

// The mean of each point and its neighbours, as many on either side: up to 6, and fewer near the ends.
function smoothed(d) {
  const places = [...d.matchAll(/([ML]) (-?[\d.]+) (-?[\d.]+)/g)];
  const line = places.map(([, letter, x], i) => {
    const reach = Math.min(6, i, places.length - 1 - i);
    const near = places.slice(i - reach, i + reach + 1);
    return `${letter} ${x} ${near.reduce((sum, each) => sum + +each[3], 0) / near.length}`;
  });
  return line.join(" ");
}

const hide = document.querySelector(".entry") ? " Click on a name to hide its lines in all figures." : "";
document.querySelector(".legend").insertAdjacentHTML(
  "beforeend", ` <span class="hint">Point at a line for its values, or move along it with the arrow keys (with Shift, point by point).${hide}</span>`);

if (document.querySelector("[data-smooth]")) {
  const row = document.querySelector(".entries") ?? document.querySelector(".legend");
  row.insertAdjacentHTML("beforeend", ' <label class="hint"><input type="checkbox"> Smooth the figures of Training</label>');
  row.querySelector("input").addEventListener("change", (event) => {
    for (const path of document.querySelectorAll("[data-smooth] .curve > path:not(.faint)")) {
      if (!event.target.checked) {
        path.setAttribute("d", path.previousSibling.getAttribute("d"));
        path.previousSibling.remove();
        continue;
      }
      path.before(path.cloneNode());
      path.previousSibling.classList.add("faint");
      path.setAttribute("d", smoothed(path.getAttribute("d")));
    }
  });
}

for (const entry of document.querySelectorAll(".entry"))
  entry.addEventListener("click", () => {
    const isOff = entry.ariaPressed === "true";
    entry.ariaPressed = !isOff;
    for (const each of document.querySelectorAll("[data-of]"))
      if (each.dataset.of === entry.dataset.of) each.classList.toggle("off", isOff);
  });
