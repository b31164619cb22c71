// What was seen in the last quarter of an hour, by the names of its series.

const KEPT_S = 900;

export class History {
  constructor() {
    this.number = 0;
    this.samples = [];
    this.series = [];
  }

  /** Add an answer. Returns whether it is whole: that of a console that began anew is not. */
  add(data) {
    if (data.number < this.number) {
      this.number = 0;
      return false;
    }
    this.number = data.number;
    this.series = data.series;
    const last = this.samples.length ? this.samples[this.samples.length - 1][0] : 0;
    this.samples.push(...data.samples.filter((one) => one[0] > last));
    const from = this.samples.length ? this.samples[this.samples.length - 1][0] - KEPT_S : 0;
    while (this.samples.length && this.samples[0][0] < from) this.samples.shift();
    return true;
  }

  /** Return rows [time, value of each name]. */
  of(names) {
    const places = names.map((name) => this.series.indexOf(name) + 1);
    return this.samples.map((one) => [one[0], ...places.map((place) => one[place])]);
  }

  /** Return the last sample by name. */
  last() {
    const found = this.samples[this.samples.length - 1] || [];
    return Object.fromEntries(this.series.map((name, i) => [name, found[i + 1]]));
  }
}
