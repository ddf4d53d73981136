// What the page needs beside NiceGUI; everything else is drawn by the server.
window.addEventListener("beforeunload", (event) => {
  if (window.plafondDirty) event.preventDefault();
});

// Two previews of one prompt over each other, with a slider between them.
function plafondCompare(button) {
  const table = button.closest("table");
  const texts = JSON.parse(table.dataset.texts);
  const index = Number(button.dataset.index);
  const samples = JSON.parse(table.dataset.samples).filter((sample) => sample.index === index);
  const steps = samples.map((sample) => sample.step).sort((a, b) => a - b);
  const chosen = Number(button.dataset.step);
  const dialog = document.createElement("dialog");
  dialog.className = "viewer";
  const make = (tag, values = {}, children = []) => {
    const element = Object.assign(document.createElement(tag), values);
    element.append(...children);
    return element;
  };
  const choice = (value) => {
    const select = make("select", {}, steps.map((step) => new Option(step, step, false, step === value)));
    select.addEventListener("change", show);
    return select;
  };
  const first = choice(steps[0]);
  const second = choice(chosen);
  const stage = make("div", { className: "stage" });
  const slider = make("input", { type: "range", min: 0, max: 100, value: 50 });
  slider.setAttribute("aria-label", texts.divider);
  slider.addEventListener("input", () => stage.style.setProperty("--cut", slider.value + "%"));
  const close = make("button", { type: "button", textContent: texts.close });
  close.addEventListener("click", () => dialog.close());
  const picture = (step) => {
    const { url, prompt } = samples.find((sample) => sample.step === step);
    const film = url.endsWith(".mp4");
    return make(film ? "video" : "img", film ? { src: url, muted: true, loop: true, autoplay: true } : { src: url, alt: prompt });
  };
  function show() {
    stage.replaceChildren(picture(Number(first.value)), picture(Number(second.value)));
    stage.append(make("b", { textContent: first.value }), make("b", { textContent: second.value }));
  }
  const bar = make("div", { className: "line" }, [
    make("label", {}, [texts.compare + " ", first]),
    make("label", {}, [texts.with + " ", second]),
    close,
  ]);
  dialog.append(make("p", { textContent: samples[0].prompt }), make("div", { className: "fit-stage" }, [stage, slider]), bar);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("keydown", (event) => {
    const move = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (move === undefined || event.target === first) return;
    const place = steps.indexOf(Number(second.value)) + move;
    if (place >= 0 && place < steps.length) second.value = steps[place];
    show();
    event.preventDefault();
  });
  show();
  document.body.append(dialog);
  dialog.showModal();
}

// Captions: Ctrl+Enter goes on to the next one.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.closest?.(".caption")) return;
  const areas = [...document.querySelectorAll(".gallery .caption textarea")];
  const next = areas[areas.indexOf(event.target) + (event.shiftKey ? -1 : 1)];
  if (next) {
    next.focus();
    next.select();
    next.scrollIntoView({ block: "center" });
  }
  event.preventDefault();
});
