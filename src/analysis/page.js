const data = JSON.parse(document.getElementById('maps').textContent), models = data.models;
if (models.length) {
  const ramp = [[68,1,84],[72,40,120],[62,74,137],[49,104,142],[38,130,142],[31,158,137],[53,183,121],[109,205,89],
    [180,222,44],[253,231,37]];
  const colour = v => {
    const at = Math.min(Math.max(v, 0), 1) * (ramp.length - 1), i = Math.min(Math.floor(at), ramp.length - 2);
    return 'rgb(' + ramp[i].map((c, k) => Math.round(c + (at - i) * (ramp[i + 1][k] - c))).join(',') + ')';
  };
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const choose = name => document.getElementById('choose-' + name);
  const selects = ['sample', 'layer', 'head'].map(choose), same = choose('same'), under = choose('under');
  const state = {f: 0.5, y: 0.5, x: 0.5, first: -1}; // the query, as parts of the grid; first: a token in front of it
  const kept = new Map(); // decoded maps
  const map = (m, s, l, h) => { // [T*T] of sample, place of the layer, head; each row's largest is 255
    const key = [models.indexOf(m), s, l, h].join();
    if (!kept.has(key)) kept.set(key, bytes(m.maps[s][l][h]));
    return kept.get(key);
  };
  const nearest = (list, x) => list.reduce((a, b, i) => Math.abs(b - x) < Math.abs(list[a] - x) ? i : a, 0);
  const percent = x => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + ' %';
  const part = (x, n) => Math.min(Math.floor(x * n), n - 1);
  const query = m => state.first >= 0 && m.first ? 0
    : m.first + (part(state.f, m.frames) * m.grid[0] + part(state.y, m.grid[0])) * m.grid[1] + part(state.x, m.grid[1]);
  // frames lie in rows of m.across: where a token of the grid is drawn, in cells
  const cells = m => [m.grid[0] * m.frames / m.across, m.grid[1] * m.across];
  const cellOf = (m, t) => {
    const u = t - m.first, size = m.grid[0] * m.grid[1], f = Math.floor(u / size), at = u % size;
    return [Math.floor(f / m.across) * m.grid[0] + Math.floor(at / m.grid[1]), f % m.across * m.grid[1] + at % m.grid[1]];
  };
  const rowOf = m => { // what the query of this model attends to: {t, w: [T], layer, head}
    const s = Math.min(+selects[0].value, m.maps.length - 1), l = nearest(m.layers, +selects[1].value);
    const h = Math.min(+selects[2].value, m.maps[s][l].length - 1), t = query(m), a = map(m, s, l, h);
    const row = a.subarray(t * m.T, (t + 1) * m.T), sum = row.reduce((x, y) => x + y, 0) || 1;
    const w = Array.from(row, v => v / sum); // shares of the row
    return {t, w, s, layer: m.layers[l], head: h};
  };
  const place = (m, t) => m.text ? 'token ' + t : t < m.first ? 'class token'
    : (m.frames > 1 ? 'frame ' + Math.floor((t - m.first) / (m.grid[0] * m.grid[1])) + ', ' : '')
      + 'row ' + Math.floor((t - m.first) / m.grid[1]) % m.grid[0] + ', column ' + (t - m.first) % m.grid[1];
  const say = (m, r) => {
    const p = r.w, order = [...p].sort((a, b) => b - a);
    const entropy = -p.reduce((a, v) => a + (v > 0 ? v * Math.log(v) : 0), 0);
    if (!(order[0] > 0)) return place(m, r.t) + ' attends to nothing: its row holds no positive weight';
    const best = p.indexOf(order[0]);
    let text = place(m, r.t) + ' attends most to ' + (best === r.t ? 'itself' : place(m, best)) + ' (' + percent(order[0])
      + '), ' + percent(order.slice(0, 5).reduce((a, b) => a + b, 0)) + ' to its 5 first; entropy ' + entropy.toFixed(2)
      + ' of ' + Math.log(m.text ? r.t + 1 : m.T).toFixed(2);
    if (m.first && r.t >= m.first) text += '; class token ' + percent(p[0]);
    return text;
  };
  const figures = models.map((m, i) => {
    const figure = document.getElementById('look-' + i), face = figure.querySelector('.face');
    const note = figure.querySelector('.note'), where = figure.querySelector('.where');
    const images = (m.pictures || []).map(src => { const p = new Image(); p.onload = () => draw(); p.src = src; return p; });
    return {m, figure, face, note, where, images, shown: -1};
  });
  const drawGrid = (f, r, most) => { // in as many pixels as the screen shows, so that thin lines stay
    const m = f.m, [rows, cols] = cells(m), dot = window.devicePixelRatio || 1;
    const cell = Math.max(4, Math.round(f.face.clientWidth * dot / cols));
    const c = f.face, g = c.getContext('2d'), picture = f.images[r.s];
    c.width = cols * cell;
    c.height = rows * cell;
    g.imageSmoothingEnabled = false;
    if (under.checked && picture && picture.complete) g.drawImage(picture, 0, 0, c.width, c.height);
    g.globalAlpha = under.checked ? 0.7 : 1;
    for (let u = m.first; u < m.T; u++) {
      g.fillStyle = colour(r.w[u] / most);
      const [y, x] = cellOf(m, u);
      g.fillRect(x * cell, y * cell, cell, cell);
    }
    g.globalAlpha = 1;
    g.lineWidth = dot; g.strokeStyle = 'rgba(255,255,255,.55)'; // borders of blocks
    g.beginPath();
    for (let at = 0; at < rows; at += m.grid[0])
      for (let i = 1; i < m.blocks[0]; i++) {
        const y = (at + Math.floor(i * m.grid[0] / m.blocks[0])) * cell + dot / 2; g.moveTo(0, y); g.lineTo(c.width, y); }
    for (let at = 0; at < cols; at += m.grid[1])
      for (let i = 1; i < m.blocks[1]; i++) {
        const x = (at + Math.floor(i * m.grid[1] / m.blocks[1])) * cell + dot / 2; g.moveTo(x, 0); g.lineTo(x, c.height); }
    g.stroke();
    g.lineWidth = 2 * dot; g.strokeStyle = '#fff'; // frames
    g.beginPath();
    for (let y = m.grid[0]; y < rows; y += m.grid[0]) { g.moveTo(0, y * cell); g.lineTo(c.width, y * cell); }
    for (let x = m.grid[1]; x < cols; x += m.grid[1]) { g.moveTo(x * cell, 0); g.lineTo(x * cell, c.height); }
    g.stroke();
    if (r.t < m.first) return;
    const [row, column] = cellOf(m, r.t), x = column * cell, y = row * cell;
    g.lineWidth = 4 * dot; g.strokeStyle = '#000'; g.strokeRect(x + dot, y + dot, cell - 2 * dot, cell - 2 * dot);
    g.lineWidth = 2 * dot; g.strokeStyle = '#fff'; g.strokeRect(x + dot, y + dot, cell - 2 * dot, cell - 2 * dot);
  };
  const drawText = (f, r, most) => {
    if (f.shown !== r.s) {
      f.shown = r.s;
      f.face.replaceChildren(...f.m.pieces[r.s].map((piece, t) => {
        const e = document.createElement('span');
        e.textContent = piece.replace(/\n/g, '\u23ce') || '\u00b7';
        e.dataset.t = t;
        return e;
      }));
    }
    [...f.face.children].forEach((e, u) => {
      const v = u > r.t ? 0 : r.w[u] / most;
      e.style.background = u > r.t ? 'none' : colour(v);
      e.style.color = u > r.t ? 'var(--dim)' : v > 0.55 ? '#000' : '#fff';
      e.className = u === r.t ? 'query' : '';
    });
  };
  const draw = () => {
    const rows = figures.map(f => rowOf(f.m));
    const tops = rows.map((r, i) => Math.max(...r.w.slice(models[i].first), 1e-30)), most = Math.max(...tops);
    figures.forEach((f, i) => {
      (f.m.text ? drawText : drawGrid)(f, rows[i], same.checked ? most : tops[i]);
      f.note.textContent = say(f.m, rows[i]);
      f.where.textContent = 'layer ' + rows[i].layer + ', head ' + rows[i].head + ', to ' + percent(same.checked ? most : tops[i]);
    });
  };
  const go = (m, y, x) => { // to a cell of what is drawn of m
    const inside = (v, n) => Math.min(Math.max(v, 0), n - 1), [rows, cols] = cells(m);
    const row = inside(y, rows), column = inside(x, cols);
    state.first = -1;
    state.f = (Math.floor(row / m.grid[0]) * m.across + Math.floor(column / m.grid[1]) + 0.5) / m.frames;
    state.y = (row % m.grid[0] + 0.5) / m.grid[0];
    state.x = (column % m.grid[1] + 0.5) / m.grid[1];
    draw();
  };
  const step = (select, by) => {
    const n = select.options.length;
    select.selectedIndex = Math.min(Math.max(select.selectedIndex + by, 0), n - 1);
    draw();
  };
  for (const f of figures) {
    const m = f.m, follow = e => {
      if (m.text) {
        if (e.target.dataset.t !== undefined) go(m, +e.target.dataset.t, 0);
        return;
      }
      const box = f.face.getBoundingClientRect(), [rows, cols] = cells(m);
      go(m, Math.floor((e.clientY - box.top) / box.height * rows), Math.floor((e.clientX - box.left) / box.width * cols));
    };
    f.face.addEventListener('pointermove', follow);
    f.face.addEventListener('pointerdown', follow);
    f.face.addEventListener('keydown', e => {
      if (e.ctrlKey || e.altKey || e.metaKey) return; // of the browser: its zoom, its print
      const [y, x] = cellOf(m, Math.max(query(m), m.first)), far = m.text ? 10 : 1;
      const move = {ArrowLeft: m.text ? [-1, 0] : [0, -1], ArrowRight: m.text ? [1, 0] : [0, 1], ArrowUp: [-far, 0],
        ArrowDown: [far, 0]}[e.key];
      if (move) go(m, y + move[0], x + move[1]);
      else if (e.key === 'Home') go(m, 0, 0);
      else if (e.key === 'End') go(m, m.T, m.T);
      else if (e.key === 'PageUp') step(selects[1], -1);
      else if (e.key === 'PageDown') step(selects[1], 1);
      else if (e.key === '+') step(selects[2], 1);
      else if (e.key === '-') step(selects[2], -1);
      else if (e.key === 'n') step(selects[0], 1);
      else if (e.key === 'p') step(selects[0], -1);
      else if (e.key === 'c' && m.first) { state.first = 0; draw(); }
      else return;
      e.preventDefault();
    });
  }
  for (const e of [...selects, same, under]) e.addEventListener('change', draw);
  window.addEventListener('resize', draw);
  draw();
}
