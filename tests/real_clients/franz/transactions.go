package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What `transact` is told on stdin, line by line, each answered by one: ok, fenced, or failed and why.
// What was sent fails when it is flushed, or the transaction ends.
//
//	NAME open BOOTSTRAP TRANSACTIONAL_ID TIMEOUT_MS
//	NAME begin
//	NAME send TOPIC PARTITION VALUE
//	NAME flush
//	NAME commit
//	NAME abort
//	NAME close                                       at once, and says nothing to the broker
type transactional struct {
	client *kgo.Client
	failed atomic.Pointer[error]
}

// Each command has its time; the program itself is there for as long as somebody tells it something.
func transact() {
	producers := map[string]*transactional{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := obey(ctx, producers, strings.Fields(lines.Text()))
		cancel()
		switch {
		case err == nil:
			fmt.Println("ok")
		case errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch):
			fmt.Println("fenced")
		default:
			fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
	check(lines.Err())
}

func obey(ctx context.Context, producers map[string]*transactional, words []string) error {
	name, command := words[0], words[1]
	if command == "open" {
		opened, err := open(ctx, words[2], words[3], time.Duration(number(words[4]))*time.Millisecond)
		producers[name] = opened
		return err
	}
	producer := producers[name]
	switch command {
	case "begin":
		producer.failed.Store(nil)
		return producer.client.BeginTransaction()
	case "send":
		record := &kgo.Record{Topic: words[2], Partition: int32(number(words[3])), Value: []byte(words[4])}
		producer.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				producer.failed.CompareAndSwap(nil, &err)
			}
		})
		return nil
	case "flush":
		return producer.flush(ctx)
	case "commit":
		if err := producer.flush(ctx); err != nil {
			return err
		}
		return producer.client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		if err := producer.client.AbortBufferedRecords(ctx); err != nil {
			return err
		}
		return producer.client.EndTransaction(ctx, kgo.TryAbort)
	case "close":
		producer.client.Close()
		delete(producers, name)
		return nil
	}
	return fmt.Errorf("unknown command %q", command)
}

func open(ctx context.Context, bootstrap, transactionalID string, timeout time.Duration) (*transactional, error) {
	made, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(transactionalID),
		kgo.TransactionTimeout(timeout), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// Topics are young here.
		kgo.MetadataMinAge(10*time.Millisecond))
	check(err)
	_, _, err = made.ProducerID(ctx)
	return &transactional{client: made}, err
}

func (producer *transactional) flush(ctx context.Context) error {
	if err := producer.client.Flush(ctx); err != nil {
		return err
	}
	if failed := producer.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// pipe copies count records of one topic to another as a member of a group, each exactly once, and prints how
// many transactions it has committed. Of those that it begins every third one is aborted.
func pipe(ctx context.Context, transactionalID, group, from, to string, count int) {
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(os.Args[2]), kgo.TransactionalID(transactionalID),
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(from), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(), kgo.DefaultProduceTopic(to),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	check(err)
	defer session.Close()

	commits := 0
	for copied, round := 0, 0; copied < count; round++ {
		fetches := session.PollRecords(ctx, count/8)
		check(fetches.Err())
		check(session.Begin())
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Partition: r.Partition, Value: r.Value}, nil)
		})
		committed, err := session.End(ctx, kgo.TransactionEndTry(round%3 != 0))
		check(err)
		if committed {
			copied += fetches.NumRecords()
			commits++
		}
	}
	fmt.Println(commits)
}
