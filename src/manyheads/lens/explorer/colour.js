// The colours of weights: one hue, told apart by lightness alone, so that every eye and any printer
// sees the order. A weight's square root is shown, so that small weights are not lost; `most` is the
// weight that is shown as strongly as can be.
const LIGHT = ["#ffffff", "#d6e7f4", "#9dc8e5", "#599fcf", "#2672b2", "#124b89", "#08264f"];
const DARK = ["#12161c", "#14304f", "#1c5288", "#2f7db8", "#62aad6", "#a9d2ec", "#f2f8fc"];

export function scale(dark) {
  const stops = (dark ? DARK : LIGHT).map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const colours = Array.from({ length: 256 }, (_, level) => {
    const x = (level / 255) * (stops.length - 1),
      low = Math.min(Math.floor(x), stops.length - 2);
    return stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (x - low)));
  });
  const pixels = Uint32Array.from(
    colours,
    ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0,
  );
  const level = (weight, most) => Math.round(Math.sqrt(Math.min(1, Math.max(0, weight / most))) * 255);
  const lightness = ([red, green, blue]) => 0.3 * red + 0.59 * green + 0.11 * blue;
  return {
    css: (weight, most) => `rgb(${colours[level(weight, most)]})`,
    ink: (weight, most) => (lightness(colours[level(weight, most)]) > 125 ? "#14181d" : "#ffffff"), // what is read upon it
    picture(weights, height, width, most) {
      const canvas = Object.assign(document.createElement("canvas"), { width, height });
      const image = new ImageData(width, height),
        dots = new Uint32Array(image.data.buffer);
      for (let i = 0; i < dots.length; i++) dots[i] = pixels[level(weights[i], most)];
      canvas.getContext("2d").putImageData(image, 0, 0);
      return canvas;
    },
  };
}
