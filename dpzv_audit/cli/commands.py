"""Registers every command on the app, in the order in which help lists them."""

from dpzv_audit.cli import account, app, attack, audit, calibrate, listing, matrix, report, reproduce, train, verify

app.command("attack")(attack.attack)
app.command("train")(train.train)
app.command("audit")(audit.audit)
app.command("account")(account.account)
app.command("calibrate")(calibrate.calibrate)
app.command("verify")(verify.verify)
app.command("matrix")(matrix.matrix)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.list_what)
