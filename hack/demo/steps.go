package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const lockManifest = `apiVersion: distlock.dev/v1alpha1
kind: DistLock
metadata: {name: ledger, namespace: demo}
`

// cronJob is one of two that start in the same second, every minute.
func cronJob(name string) string {
	return fmt.Sprintf(`---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: %s
  namespace: demo
  annotations: {distlock.dev/lock: ledger}
spec:
  schedule: "* * * * *"
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: main
            image: busybox
            command: [sh, -c, 'echo "books with token $DISTLOCK_FENCING_TOKEN"; sleep 3']
`, name)
}

func job(name string, seconds int, lock string) string {
	annotations := "{}"
	if lock != "" {
		annotations = "{distlock.dev/lock: " + lock + "}"
	}
	return fmt.Sprintf(`---
apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: demo, annotations: %s}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: busybox, command: [sh, -c, 'echo "$DISTLOCK_NAME $DISTLOCK_FENCING_TOKEN"; sleep %d']}
`, name, annotations, seconds)
}

func (d *demo) scheduleCronJobs(ctx context.Context) error {
	heading("A lock, and two CronJobs that must not overlap")
	note("Each bears one annotation, distlock.dev/lock: ledger. Both start with the next minute.")
	if err := d.kubectl(ctx, "create", "namespace", namespace); err != nil {
		return err
	}
	return d.apply(ctx, lockManifest+cronJob("invoices")+cronJob("payments"))
}

func (d *demo) contend(ctx context.Context) error {
	heading("Five Jobs want the lock at once: one at a time, in the order they came")
	var manifests, names []string
	for _, name := range []string{"job-1", "job-2", "job-3", "job-4", "job-5"} {
		manifests, names = append(manifests, job(name, 1, lockName)), append(names, name)
	}
	if err := d.apply(ctx, strings.Join(manifests, "")); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "distlock", lockName, "-n", namespace); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := d.audience.until(ctx, "five Jobs have run", func(runs []*run) bool { return ended(runs, "job-") == len(names) }); err != nil {
		return err
	}
	return d.audience.inOrder(names)
}

// inOrder reports Jobs that did not run in the order given.
func (a *audience) inOrder(names []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, r := range started(a.runs, "job-") {
		if r.job != names[i] {
			return fmt.Errorf("%s ran when it was %s's turn", r.job, names[i])
		}
	}
	kept("in order, one at a time, each with a token of its own")
	return nil
}

func (d *demo) cheat(ctx context.Context) error {
	heading("Ways around the lock are refused by the API server itself")
	if err := d.apply(ctx, job("long", 4, lockName)+job("sneaky", 1, lockName)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := d.audience.until(ctx, "long runs", func(runs []*run) bool { return len(started(runs, "long")) == 1 }); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"patch", "job", "sneaky", "-n", namespace, "-p", `{"spec":{"suspend":false}}`},
		{"annotate", "job", "sneaky", "-n", namespace, "distlock.dev/lock-"},
		{"delete", "distlock", lockName, "-n", namespace},
	} {
		err := d.kubectl(ctx, args...)
		if !isRefusal(err) {
			return fmt.Errorf("kubectl %s was not refused by a policy: %w", strings.Join(args, " "), err)
		}
		note("%s", indent(dim(answer(err))))
	}
	kept("each was refused, with the reason")
	return d.audience.until(ctx, "sneaky had its turn", func(runs []*run) bool { return ended(runs, "sneaky") == 1 })
}

func isRefusal(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// answer is what the API server said.
func answer(err error) string {
	said := strings.TrimSpace(err.Error())
	if i := strings.Index(said, "Error from server"); i >= 0 {
		return said[i:]
	}
	return said
}

func (d *demo) crash(ctx context.Context) error {
	heading("The controller is killed in the middle")
	if err := d.apply(ctx, job("before", 3, lockName)+job("after", 1, lockName)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if err := d.audience.until(ctx, "before runs", func(runs []*run) bool { return len(started(runs, "before")) == 1 }); err != nil {
		return err
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	leader.kill()
	happened("kill -9 of replica %d, which led", leader.number)
	if err := d.apply(ctx, job("unrelated", 1, "")); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "wait", "-n", namespace, "job/unrelated", "--for=condition=Complete", "--timeout=30s"); err != nil {
		return err
	}
	kept("Jobs without the annotation run as ever")
	if err := d.audience.until(ctx, "before has run", func(runs []*run) bool { return ended(runs, "before") == 1 }); err != nil {
		return err
	}
	note("   The next one waits until the other replica has taken over; nobody jumps in meanwhile.")
	if err := d.audience.until(ctx, "after has run", func(runs []*run) bool { return ended(runs, "after") == 1 }); err != nil {
		return err
	}
	kept("the holder ran on, and the next came after it")
	return nil
}

func (d *demo) awaitCronJobs(ctx context.Context) error {
	heading("The CronJobs, which started in the same second")
	ctx, cancel := context.WithTimeout(ctx, time.Minute+patience)
	defer cancel()
	if err := d.audience.until(ctx, "both CronJobs have run", func(runs []*run) bool {
		return ended(runs, "invoices-") > 0 && ended(runs, "payments-") > 0
	}); err != nil {
		return err
	}
	return d.kubectl(ctx, "get", "jobs", "-n", namespace)
}

// summary says what was seen, and fails if any of it was wrong.
func (d *demo) summary(took time.Duration) error {
	heading("Summary")
	a := d.audience
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, wrong := range a.wrong {
		fmt.Printf("   %s %s\n", red("WRONG"), wrong)
	}
	if len(a.wrong) > 0 {
		return errors.New("not everything was as promised")
	}
	first, last := a.runs[0].token, a.runs[len(a.runs)-1].token
	kept("%d runs of Jobs behind the lock, none overlapped", len(a.runs))
	kept("fencing tokens rose with every run, from %d to %d", first, last)
	kept("every attempt to get around the lock was refused; a crash of the controller lost nothing")
	note("   It took %s.", took.Round(time.Second))
	return nil
}
