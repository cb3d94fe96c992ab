// A click on a variable marks the blocks that it touches; a second click, or one on the note, takes the marks away.
const blocks = [...document.querySelectorAll(".block")];
const buttons = [...document.querySelectorAll("button[data-variable]")];
const note = document.getElementById("shown");

function show(button) {
  const number = button ? button.dataset.variable : null;
  const marked = blocks.filter((block) => block.dataset.variables.split(" ").includes(number));
  document.body.classList.toggle("showing", Boolean(button));
  blocks.forEach((block) => block.classList.toggle("marked", marked.includes(block)));
  buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
  note.hidden = !button;
  if (button) {
    note.textContent = `${button.textContent}: ${marked.length} of ${blocks.length} blocks ×`;
    marked[0]?.scrollIntoView({ block: "center" });
  }
}

buttons.forEach((button) =>
  button.addEventListener("click", () => show(button.getAttribute("aria-pressed") === "true" ? null : button)),
);
note.addEventListener("click", () => show(null));
document.body.classList.add("with-script");
