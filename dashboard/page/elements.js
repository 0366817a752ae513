// elements.js are the page's parts but for the table of resources. Each shows values of a
// picture (dashboard/picture.go).

import { el, fill, keyed, count } from './dom.js';
import { short } from './encodings.js';

function duration(seconds) {
  if (seconds < 60) return seconds + ' s';
  if (seconds < 3600) return Math.floor(seconds / 60) + ' min ' + (seconds % 60) + ' s';
  return Math.floor(seconds / 3600) + ' h ' + Math.floor(seconds / 60) % 60 + ' min';
}

// List is an element with a list that is kept.
class List extends HTMLElement {
  connectedCallback() {
    this.list = el(this.ordered ? 'ol' : 'ul');
    this.more = el('p', { className: 'more', hidden: true });
    this.append(this.list, this.more);
  }

  tellMore(n, noun) {
    this.more.hidden = !n;
    this.more.textContent = n ? 'and ' + count(n, noun) + ' more: kubectl concord status' : '';
  }
}

const mild = new Set(['Deleting', 'Paused', 'Waiting', 'Held', 'LeftAlone']);

class Problems extends List {
  show(problems, more) {
    keyed(this.list, problems, (p) => p.kind + ' ' + (p.server ?? '') + ' ' + (p.resources?.[0] ?? ''), (li, p) => {
      li.className = mild.has(p.kind) ? 'halted' : 'bad';
      const open = li.querySelector('details')?.open ?? false;
      fill(li,
        el('p', { className: 'what' }, p.text),
        p.objects?.length ? this.#objects(p, open) : null,
        p.do ? el('p', { className: 'do' }, 'What to do: ' + p.do + (p.run ? ':' : '')) : null,
        p.run ? el('pre', { tabIndex: 0, 'aria-label': 'command' }, el('code', {}, p.run)) : null);
    });
    this.tellMore(more, 'problem');
  }

  #objects(p, open) {
    const more = (p.failed ?? 0) - p.objects.length;
    return el('details', { open },
      el('summary', {}, p.objects[0].name + (p.failed > 1 ? ' and ' + count(p.failed - 1, 'other object') : '')),
      el('ul', { className: 'objects' }, ...p.objects.map((o) => el('li', {}, el('code', {}, o.name), ' ' + o.message)),
        more > 0 ? el('li', {}, 'and ' + count(more, 'object') + ' more') : null));
  }
}

class Migrations extends List {
  show(moving, more) {
    keyed(this.list, moving, (m) => m.migration, (li, m) => {
      const of = m.resource + (m.to ? ' to ' + short(m.resource, m.to) : '');
      const facts = [];
      if (m.total) facts.push(Math.floor(100 * m.done / m.total) + ' %', m.done.toLocaleString('en') + ' of ' + count(m.total, 'object'));
      if (m.failed) facts.push(m.failed.toLocaleString('en') + ' failed');
      if (m.state === 'running' && !m.unrated && m.done + m.objectsPerSecond) facts.push((m.objectsPerSecond ? m.objectsPerSecond.toLocaleString('en') : 'less than 1') + ' a second');
      if (m.leftSeconds) facts.push(duration(m.leftSeconds) + ' left');
      if (m.by) facts.push('by ' + m.by);
      li.className = m.state === 'running' || m.state === 'proving' ? 'moving' : 'halted';
      let bar = li.querySelector('progress');
      if (!bar) li.append(el('p', { className: 'what' }), bar = el('progress', { max: 1 }), el('p', { className: 'facts' }));
      bar.setAttribute('aria-label', of);
      bar.value = m.total ? Math.min(1, m.done / m.total) : 0;
      li.querySelector('.what').textContent = of + ': ' + m.state + (m.leftBy ? ' (' + m.leftBy + ', which began it, is gone)' : '') + (m.behind?.length ? ', waits for its turn behind ' + m.behind.join(', ') : '');
      li.querySelector('.facts').textContent = facts.join(', ');
    });
    this.tellMore(more, 'migration');
  }
}

class Servers extends List {
  show(servers) {
    keyed(this.list, servers, (s) => s.id, (li, s) => {
      let versions = s.release ?? '';
      if (s.emulates && s.emulates !== s.release) versions += ', emulates ' + s.emulates;
      if (s.readableFrom) versions += ', stores what ' + s.readableFrom + ' can read';
      if (s.build) versions += ', build ' + s.build;
      li.className = s.state;
      fill(li, el('code', {}, s.id), ' ',
        el('strong', { className: 'mark' }, s.state === 'dead' || s.state === 'unrenewed' ? s.state + ' for ' + duration(s.renewedSecondsAgo) : s.state), ' ',
        el('span', {}, versions || 'tells no release', s.aggregated ? ', aggregated' : ''));
    });
  }
}

class Releases extends List {
  show(releases) {
    keyed(this.list, releases, (r) => r.release, (li, r) => {
      const open = li.querySelector('details')?.open ?? false;
      const mark = { safe: 'settled', unsafe: 'bad' }[r.verdict] ?? 'halted';
      li.className = mark;
      fill(li, el('span', {}, (r.back ? 'Back to ' : 'Forward to ') + r.release + ': '), el('strong', { className: 'mark' }, r.verdict));
      if (!r.notSafe) {
        li.append(el('p', { className: 'facts' }, 'It reads all of ' + count(r.judged, 'resource') + ', by what is remembered of them.'));
        return;
      }
      li.append(el('details', { open },
        el('summary', {}, r.notSafe.toLocaleString('en') + ' of ' + count(r.judged, 'resource')),
        el('ul', {}, ...r.resources.map((f) => el('li', {}, el('code', {}, f.resource), ' ' + f.reason)),
          r.notSafe > r.resources.length ? el('li', {}, 'and ' + count(r.notSafe - r.resources.length, 'resource') + ' more') : ''),
        el('p', { className: 'facts' }, 'With objects counted:'),
        el('pre', { tabIndex: 0, 'aria-label': 'command' }, el('code', {}, 'kubectl concord preflight --' + (r.back ? 'back-to ' : 'to ') + r.release))));
    });
  }
}

class Timeline extends List {
  ordered = true;

  connectedCallback() {
    super.connectedCallback();
    this.list.tabIndex = 0; // it scrolls
    this.list.setAttribute('aria-labelledby', 'timeline-title');
  }

  show(moments) {
    const today = new Date().toDateString();
    keyed(this.list, moments, (m) => m.at + ' ' + m.kind + ' ' + m.text, (li, m) => {
      const at = new Date(m.at);
      li.className = m.kind;
      fill(li, el('time', { dateTime: m.at, title: at.toString() }, at.toDateString() === today ? at.toLocaleTimeString() : at.toLocaleString()), el('span', {}, m.text));
    });
  }
}

customElements.define('concord-problems', Problems);
customElements.define('concord-migrations', Migrations);
customElements.define('concord-servers', Servers);
customElements.define('concord-releases', Releases);
customElements.define('concord-timeline', Timeline);
