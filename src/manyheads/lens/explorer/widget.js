// A notebook's output, through anywidget: exact weights are computed by Python when they are asked for.
import { explore } from "./explorer.js";

const night = () =>
  document.body.dataset.jpThemeLight === "false" ||
  (matchMedia("(prefers-color-scheme: dark)").matches && document.body.dataset.jpThemeLight !== "true");

async function render({ model, el }) {
  const root = document.createElement("div"),
    answers = new Map();
  root.className = "manyheads notebook";
  root.tabIndex = 0;
  root.dataset.lmSuppressShortcuts = "true"; // the notebook's own keys rest while ours are in use
  el.append(root);
  const ask = (window) =>
    new Promise((resolve, reject) => {
      const id = `${Math.random()}`; // other views of the same widget hear the answer too
      answers.set(id, { resolve, reject });
      model.send({ id, ...window });
    });
  const answered = (message, buffers) => {
    const { resolve, reject } = answers.get(message.id) ?? {};
    if (!answers.delete(message.id)) return;
    if (message.error) reject(new Error(message.error));
    else resolve(new Float32Array(bytesOf(buffers[0]).slice().buffer));
  };
  model.on("msg:custom", answered);
  const explorer = await explore(root, model.get("content"), bytesOf(model.get("data")), {
    dark: night,
    recall: () => model.get("state"),
    remember(text) {
      model.set("state", text);
      model.save_changes();
    },
    ask,
    keys: root,
  });
  return () => {
    model.off("msg:custom", answered);
    explorer.close();
  };
}

const bytesOf = (view) => new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);

export default { render };
