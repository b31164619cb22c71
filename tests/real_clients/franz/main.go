// Writes and reads records with franz-go for the client tests.
//
//	franz produce BOOTSTRAP TOPIC CODEC              records as JSON lines on stdin, one offset per line on stdout
//	franz consume BOOTSTRAP TOPIC PARTITIONS COUNT   records as JSON lines on stdout
//	franz committed BOOTSTRAP TOPIC PARTITIONS COUNT the same of committed records
//	franz join    BOOTSTRAP TOPIC GROUP              number of records of a new group's first poll
//	franz pipe    BOOTSTRAP ID GROUP FROM TO COUNT   number of transactions by which so many records were copied
//	franz transact                                   see transactions.go
//	franz tokens  BOOTSTRAP USER PASSWORD PREFIX     see tokens.go
//	franz framed  REGISTRY                           see registry.go
//	franz create  BOOTSTRAP TOPIC PARTITIONS
//	franz topics  BOOTSTRAP                          topic and number of partitions per line
//	franz delete  BOOTSTRAP TOPIC
//	franz admin   BOOTSTRAP TOPIC                    see admin.go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Longer than whoever runs this waits: a loaded machine is slow, not wrong.
const timeout = 10 * time.Minute

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// A null key or value is a nil slice, which JSON shows as null; bytes are base64.
type record struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
	TimestampMs int64    `json:"timestamp_ms"`
}

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(os.Args[2]))...)
	check(err)
	return made
}

func produce(ctx context.Context, topic, codec string) {
	compression, known := codecs[codec]
	if !known {
		check(fmt.Errorf("unknown codec %q", codec))
	}
	writer := client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(compression), kgo.RequiredAcks(kgo.AllISRAcks()))
	defer writer.Close()

	var sent []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line record
		check(json.Unmarshal(lines.Bytes(), &line))
		out := &kgo.Record{Partition: line.Partition, Key: line.Key, Value: line.Value,
			Timestamp: time.UnixMilli(line.TimestampMs)}
		for _, h := range line.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		sent = append(sent, out)
	}
	check(lines.Err())
	check(writer.ProduceSync(ctx, sent...).FirstErr())
	for _, r := range sent {
		fmt.Println(r.Offset)
	}
}

func consume(ctx context.Context, topic string, partitions, count int, isolation kgo.IsolationLevel) {
	starts := map[int32]kgo.Offset{}
	for partition := range partitions {
		starts[int32(partition)] = kgo.NewOffset().AtStart()
	}
	reader := client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}),
		kgo.FetchIsolationLevel(isolation))
	defer reader.Close()

	out := json.NewEncoder(os.Stdout)
	for read := 0; read < count; {
		fetches := reader.PollRecords(ctx, count-read)
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			line := record{Partition: r.Partition, Offset: r.Offset, Key: r.Key, Value: r.Value,
				Headers: []header{}, TimestampMs: r.Timestamp.UnixMilli()}
			for _, h := range r.Headers {
				line.Headers = append(line.Headers, header{h.Key, h.Value})
			}
			check(out.Encode(line))
			read++
		})
	}
}

// join prints how many records the first poll of a group's only member brings, and commits them.
func join(ctx context.Context, topic, group string) {
	member := client(kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer member.Close()
	fetches := member.PollFetches(ctx)
	check(fetches.Err())
	check(member.CommitUncommittedOffsets(ctx))
	fmt.Println(fetches.NumRecords())
}

func create(ctx context.Context, topic string, partitions int) {
	_, err := kadm.NewClient(client()).CreateTopic(ctx, int32(partitions), 1, nil, topic)
	check(err)
}

func topics(ctx context.Context) {
	found, err := kadm.NewClient(client()).ListTopics(ctx)
	check(err)
	for _, topic := range found.Sorted() {
		fmt.Println(topic.Topic, len(topic.Partitions))
	}
}

func remove(ctx context.Context, topic string) {
	_, err := kadm.NewClient(client()).DeleteTopic(ctx, topic)
	check(err)
}

func number(argument string) int {
	parsed, err := strconv.Atoi(argument)
	check(err)
	return parsed
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 4 && arguments[0] == "produce":
		produce(ctx, arguments[2], arguments[3])
	case len(arguments) == 5 && arguments[0] == "consume":
		consume(ctx, arguments[2], number(arguments[3]), number(arguments[4]), kgo.ReadUncommitted())
	case len(arguments) == 5 && arguments[0] == "committed":
		consume(ctx, arguments[2], number(arguments[3]), number(arguments[4]), kgo.ReadCommitted())
	case len(arguments) == 4 && arguments[0] == "join":
		join(ctx, arguments[2], arguments[3])
	case len(arguments) == 7 && arguments[0] == "pipe":
		pipe(ctx, arguments[2], arguments[3], arguments[4], arguments[5], number(arguments[6]))
	case len(arguments) == 1 && arguments[0] == "transact":
		transact()
	case len(arguments) == 5 && arguments[0] == "tokens":
		tokens(ctx, arguments[2], arguments[3], arguments[4])
	case len(arguments) == 2 && arguments[0] == "framed":
		framed(ctx, arguments[1])
	case len(arguments) == 4 && arguments[0] == "create":
		create(ctx, arguments[2], number(arguments[3]))
	case len(arguments) == 2 && arguments[0] == "topics":
		topics(ctx)
	case len(arguments) == 3 && arguments[0] == "delete":
		remove(ctx, arguments[2])
	case len(arguments) == 3 && arguments[0] == "admin":
		admin(ctx, arguments[2])
	default:
		check(fmt.Errorf("unknown arguments %q: see the head of main.go", arguments))
	}
}
