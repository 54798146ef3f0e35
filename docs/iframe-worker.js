/* The search's worker. From disk, browsers start none: this stand-in runs it in a hidden frame of the page. */
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    document.body.append(frame)
    const inner = frame.contentWindow
    /* What the worker posts arrives at this object. */
    inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    this.loaded = new Promise(resolve => {
      const script = inner.document.createElement("script")
      script.src = new URL(url, document.baseURI)
      script.onload = () => resolve(inner)
      inner.document.body.append(script)
    })
  }

  postMessage(data) {
    this.loaded.then(inner => inner.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() {}
}

/* The worker finds the sections that have any of the words. Pages with all words in one section come first, then pages
   that have them in several sections. */
const has_all = ({ terms }) => Object.keys(terms).length > 0 && !Object.values(terms).includes(false)

function rank(sections) {
  const score = Math.max(0, ...sections.filter(has_all).map(each => each.score))
  const words = sections.flatMap(each => Object.keys(each.terms).filter(word => each.terms[word]))
  const is_complete = sections.some(each => Object.keys(each.terms).every(word => words.includes(word)))
  return [score, is_complete ? 1 : 0]
}

window.Worker = class extends (location.protocol === "file:" ? window.IFrameWorker : window.Worker) {
  constructor(...settings) {
    super(...settings)
    this.addEventListener("message", ({ data: { data } }) => {
      if (!data?.items) return
      const ranks = new Map(data.items.map(sections => [sections, rank(sections)]))
      for (const sections of data.items) sections.sort((a, b) => has_all(b) - has_all(a))
      data.items.sort((a, b) => ranks.get(b)[0] - ranks.get(a)[0] || ranks.get(b)[1] - ranks.get(a)[1])
    })
  }
}
