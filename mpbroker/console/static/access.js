// Users and access control lists: who may log in, and who may do what.

import { get } from "./api.js";
import { field, form } from "./dialog.js";
import { h, option, replace, setText } from "./dom.js";
import { counted } from "./format.js";
import { Table } from "./table.js";

const keyOf = (row) => JSON.stringify(row);

export class Access {
  constructor(shell) {
    this.shell = shell;
    this.said = h("p", { class: "said dim", role: "status" });
    this.aclsSaid = h("p", { class: "said dim" });
    const remove = (ask) => ({ key: "remove", title: "", align: "end", cell: (row) => shell.mayWrite && h("button", { type: "button", class: "danger", onclick: () => ask(row) }, "Remove") });
    this.users = new Table({
      label: "Users", key: keyOf, sorted: "user", descending: false, empty: "No users with a SCRAM password",
      columns: [
        { key: "user", title: "User", cell: (row) => row.user, sort: (row) => row.user, wide: true },
        { key: "mechanism", title: "Mechanism", cell: (row) => row.mechanism, sort: (row) => row.mechanism },
        { key: "iterations", title: "Iterations", align: "end", cell: (row) => row.iterations, from: "m" },
        remove((row) => this.askRemoveUser(row)),
      ],
    });
    this.acls = new Table({
      label: "Access control lists", kind: "stack", key: keyOf, sorted: "principal", descending: false, empty: "No ACLs",
      columns: [
        { key: "principal", title: "Principal", cell: (row) => row.principal, sort: (row) => row.principal, wide: true },
        { key: "operation", title: "May", cell: (row) => [h("span", { class: `badge ${row.permission === "Deny" ? "bad" : ""}` }, row.permission), ` ${row.operation}`], sort: (row) => row.operation },
        { key: "name", title: "Resource", cell: (row) => `${row.resource} ${row.name}${row.pattern === "Prefixed" ? " (prefix)" : ""}`, sort: (row) => `${row.resource} ${row.name}` },
        { key: "host", title: "Host", cell: (row) => row.host, from: "m" },
        remove((row) => this.askRemoveAcl(row)),
      ],
    });
    const button = (title, ask) => h("button", { type: "button", class: "primary", hidden: !shell.mayWrite, onclick: ask }, title);
    this.element = h("div", { class: "view" }, h("div", { class: "title" }, h("h1", null, "Access")), this.said,
      h("section", { class: "card" }, h("header", null, h("h3", null, "Users"), h("span", { class: "spring" }), button("New user", () => this.askUser())), this.users.element),
      h("section", { class: "card" }, h("header", null, h("h3", null, "Access control lists"), h("span", { class: "spring" }), button("New ACL", () => this.askAcl())), this.aclsSaid, this.acls.element));
    this.load();
  }

  async load() {
    try {
      this.found = await get("access");
      this.users.update(this.found.users);
      this.acls.update(this.found.acls);
      setText(this.said, `${counted(this.found.users.length, "password")} · ${counted(this.found.acls.length, "ACL")}`);
      setText(this.aclsSaid, this.found.acls_problem || "");
    } catch (error) {
      this.shell.failed(error, this.said);
    }
  }

  askUser() {
    const user = h("input", { type: "text", required: true, autocomplete: "off", name: "user" });
    const mechanism = h("select", { name: "mechanism" }, (this.found?.mechanisms || []).map((one) => option(one, one)));
    const password = h("input", { type: "password", required: true, autocomplete: "new-password", name: "password" });
    form({
      title: "New user", action: "Save user", done: () => this.load(),
      about: "Sets the password of a user for SCRAM, whether there is one already or not. The broker keeps a salted hash.",
      fields: [field("User", user), field("Mechanism", mechanism), field("Password", password)],
      read: () => ["add-user", { user: user.value, mechanism: mechanism.value, password: password.value }],
    });
  }

  askRemoveUser(row) {
    form({
      title: `Remove ${row.user}`, about: `${row.user} can no longer log in with ${row.mechanism}. Connections that are open stay.`, action: "Remove user",
      isDanger: true, typed: row.user, fields: [], done: () => this.load(),
      read: () => ["delete-user", { user: row.user, mechanism: row.mechanism }],
    });
  }

  askAcl() {
    const operations = this.found?.operations || {};
    const select = (name, values) => h("select", { name }, values.map((one) => option(one, one)));
    const principal = h("input", { type: "text", required: true, value: "User:", autocomplete: "off", name: "principal" });
    const permission = select("permission", ["Allow", "Deny"]);
    const resource = select("resource", Object.keys(operations));
    const name = h("input", { type: "text", autocomplete: "off", name: "name", placeholder: "a name, or * for all" });
    const pattern = h("select", { name: "pattern" }, option("Literal", "This name"), option("Prefixed", "Names that begin so"));
    const operation = h("select", { name: "operation" });
    const host = h("input", { type: "text", value: "*", autocomplete: "off", name: "host" });
    const fill = () => replace(operation, operations[resource.value].map((one) => option(one, one)));
    resource.addEventListener("change", fill);
    fill();
    form({
      title: "New ACL", action: "Add ACL", done: () => this.load(),
      fields: [field("Principal", principal), field("May", permission), field("Operation", operation), field("Resource", resource),
        field("Name", name), field("Names", pattern), field("From host", host, "An IP address, or * for all")],
      read: () => ["add-acl", { acl: { principal: principal.value, permission: permission.value, operation: operation.value, resource: resource.value,
        name: name.value, pattern: pattern.value, host: host.value } }],
    });
  }

  askRemoveAcl(row) {
    form({
      title: "Remove an ACL", about: `${row.principal}: ${row.permission} ${row.operation} on ${row.resource} ${row.name} (${row.pattern}) from ${row.host}`,
      action: "Remove ACL", isDanger: true, fields: [], done: () => this.load(),
      read: () => ["remove-acl", { acl: row }],
    });
  }
}
