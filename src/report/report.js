'use strict';
const near = (xs, x) => { // the index of the value nearest to x; xs grows
  let a = 0, b = xs.length - 1;
  while (b - a > 1) { const m = (a + b) >> 1; if (xs[m] < x) a = m; else b = m; }
  return Math.abs(xs[a] - x) <= Math.abs(xs[b] - x) ? a : b;
};
for (const figure of document.querySelectorAll('.chart')) {
  const d = JSON.parse(figure.querySelector('script').textContent);
  const svg = figure.querySelector('svg'), cursor = svg.querySelector('.cursor');
  const bar = cursor.querySelector('line'), dots = cursor.querySelectorAll('circle');
  const at = figure.querySelector('.at');
  const values = [...figure.querySelectorAll('.entry')].map(e => e.querySelectorAll('b'));
  const resting = [at, ...values.flatMap(v => [...v])].map(e => [e, e.textContent]);
  const [left, right, top, bottom] = d.box;
  const ax = x => d.logx ? Math.log2(x) : x; // along the axis
  const px = x => left + (ax(x) - d.x[0]) / (d.x[1] - d.x[0]) * (right - left);
  const py = y => bottom - ((d.log ? Math.log10(y) : y) - d.y[0]) / (d.y[1] - d.y[0]) * (bottom - top);
  const text = y => d.percent ? (100 * y).toFixed(2) + ' %' : String(Number(y.toPrecision(4)));
  const reach = (d.x[1] - d.x[0]) / 50; // farther from a line's ends it has no value
  const densest = d.lines.reduce((a, b) => b.x.length > a.x.length ? b : a).x;
  let place = -1; // in densest
  const show = x => {
    place = near(densest, x);
    x = densest[place];
    cursor.style.display = 'inline';
    bar.setAttribute('x1', px(x));
    bar.setAttribute('x2', px(x));
    at.textContent = at.dataset.name + ' ' + Number(x.toPrecision(6));
    d.lines.forEach((line, k) => {
      const i = near(line.x, x), drawn = line.m ? line.m[i] : line.y[i];
      const beyond = ax(x) < ax(line.x[0]) - reach || ax(x) > ax(line.x[line.x.length - 1]) + reach;
      dots[k].style.display = beyond ? 'none' : 'inline';
      dots[k].setAttribute('cx', px(line.x[i]));
      dots[k].setAttribute('cy', d.log && drawn <= 0 ? bottom : py(drawn));
      values[k][0].textContent = beyond ? '-' : text(line.y[i]);
      if (line.m) values[k][1].textContent = beyond ? '-' : text(line.m[i]);
    });
  };
  const rest = () => {
    place = -1;
    cursor.style.display = 'none';
    for (const [e, old] of resting) e.textContent = old;
  };
  const follow = e => {
    const box = svg.getBoundingClientRect(), x = (e.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const along = d.x[0] + (x - left) / (right - left) * (d.x[1] - d.x[0]);
    show(d.logx ? 2 ** along : along);
  };
  svg.addEventListener('pointermove', follow);
  svg.addEventListener('pointerdown', follow);
  svg.addEventListener('pointerleave', rest);
  svg.addEventListener('blur', rest);
  svg.addEventListener('keydown', e => {
    if (e.ctrlKey || e.altKey || e.metaKey) return; // of the browser: its zoom, its print
    const last = densest.length - 1, far = Math.max(1, Math.round(last / 20));
    const go = {ArrowLeft: place < 0 ? last : place - 1, ArrowRight: place + 1, PageUp: place - far,
      PageDown: place + far, Home: 0, End: last}[e.key];
    if (e.key === 'Escape') rest();
    if (go === undefined) return;
    e.preventDefault();
    show(densest[Math.min(Math.max(go, 0), last)]);
  });
}
for (const figure of document.querySelectorAll('.map[tabindex]')) {
  const values = JSON.parse(figure.querySelector('script').textContent);
  const [qc, qr, kc, kr, cell, gap, width, height] = JSON.parse(figure.dataset.layout), M = qc * qr;
  const frame = figure.querySelector('div'), note = figure.querySelector('.small'), old = note.textContent;
  const mark = document.createElement('span');
  mark.className = 'cell';
  mark.hidden = true;
  frame.append(mark);
  const wide = kc * cell + gap, high = kr * cell + gap; // of a small map and the gap behind it
  const block = i => qc > 1 && qr > 1 ? Math.floor(i / qc) + ',' + i % qc : String(i); // row, column
  let col = 0, row = 0; // cells from the left, from the top
  const show = () => {
    const i = Math.floor(row / kr) * qc + Math.floor(col / kc), b = row % kr * kc + col % kc;
    const x = Math.floor(col / kc) * wide + col % kc * cell, y = Math.floor(row / kr) * high + row % kr * cell;
    Object.assign(mark.style, {left: 100 * x / width + '%', top: 100 * y / height + '%',
      width: 100 * cell / width + '%', height: 100 * cell / height + '%'});
    mark.hidden = false;
    note.textContent = 'query block ' + block(i) + ' from block ' + block(b) + ': ' + values[i * M + b];
  };
  const rest = () => { mark.hidden = true; note.textContent = old; };
  const follow = e => {
    const box = frame.getBoundingClientRect();
    const inside = (v, size, count, step) => {
      const n = Math.min(Math.max(Math.floor(v / size), 0), count - 1);
      return n * step + Math.min(Math.max(Math.floor((v - n * size) / cell), 0), step - 1);
    };
    col = inside((e.clientX - box.left) / box.width * width, wide, qc, kc);
    row = inside((e.clientY - box.top) / box.height * height, high, qr, kr);
    show();
  };
  frame.addEventListener('pointermove', follow);
  frame.addEventListener('pointerdown', follow);
  frame.addEventListener('pointerleave', rest);
  figure.addEventListener('blur', rest);
  figure.addEventListener('keydown', e => {
    if (e.ctrlKey || e.altKey || e.metaKey) return; // of the browser: its zoom, its print
    const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[e.key];
    if (e.key === 'Escape') rest();
    if (!move) return;
    e.preventDefault();
    if (!mark.hidden) {
      col = Math.min(Math.max(col + move[0], 0), qc * kc - 1);
      row = Math.min(Math.max(row + move[1], 0), qr * kr - 1);
    }
    show();
  });
}
