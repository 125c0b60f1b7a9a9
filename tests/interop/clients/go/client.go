// Command goclient drives github.com/apache/rocketmq-client-go/v2 by the line protocol of the client drivers
// (README.md beside this folder).
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type outgoing struct {
	N              int               `json:"n"`
	Topic          string            `json:"topic"`
	Body           string            `json:"body"`
	Tag            string            `json:"tag"`
	Keys           []string          `json:"keys"`
	Properties     map[string]string `json:"properties"`
	Flag           int32             `json:"flag"`
	Level          int               `json:"level"`
	StartDeliverMs int64             `json:"start_deliver_ms"`
	TimerDeliverMs int64             `json:"timer_deliver_ms"`
	Queue          *int              `json:"queue"`
	Outcome        string            `json:"outcome"`
	Checks         []string          `json:"checks"`
	OnlyChecked    string            `json:"only_checked"`
}

type command struct {
	Op       string            `json:"op"`
	ID       string            `json:"id"`
	Group    string            `json:"group"`
	Mode     string            `json:"mode"`
	Batch    int               `json:"batch"`
	Threads  int               `json:"threads"`
	Rate     int64             `json:"rate"`
	Messages []outgoing        `json:"messages"`
	Topics   map[string]string `json:"topics"`
	Retries  map[string]string `json:"retries"`
	Order    string            `json:"order"`
	Model    string            `json:"model"`
	Sql      string            `json:"sql"`
	Reply    string            `json:"reply"`
	Brief    string            `json:"brief"`
	Timeout  int64             `json:"timeout_ms"`
	Access   string            `json:"access_key"`
	Secret   string            `json:"secret_key"`

	MaxReconsume *int32 `json:"max_reconsume"`
}

type object map[string]any

var (
	out     = bufio.NewWriter(os.Stdout)
	outLock sync.Mutex
	namesrv = primitive.NamesrvAddr(strings.Split(os.Args[1], ";"))
)

func emit(event, id string, more object) {
	more["event"], more["id"] = event, id
	text, err := json.Marshal(more)
	if err != nil {
		panic(err)
	}
	outLock.Lock()
	defer outLock.Unlock()
	out.Write(text)
	out.WriteByte('\n')
	out.Flush()
}

func atLeastOne(n int) int {
	if n < 1 {
		return 1
	}
	return n
}

func nowMs() int64 { return time.Now().UnixMilli() }

func message(from outgoing) *primitive.Message {
	body, err := base64.StdEncoding.DecodeString(from.Body)
	if err != nil {
		panic(err)
	}
	made := primitive.NewMessage(from.Topic, body)
	made.Flag = from.Flag
	if from.Tag != "" {
		made.WithTag(from.Tag)
	}
	if len(from.Keys) > 0 {
		made.WithKeys(from.Keys)
	}
	for name, value := range from.Properties {
		made.WithProperty(name, value)
	}
	if from.Level > 0 {
		made.WithDelayTimeLevel(from.Level)
	}
	if from.StartDeliverMs > 0 {
		made.WithProperty("__STARTDELIVERTIME", strconv.FormatInt(from.StartDeliverMs, 10))
	}
	if from.TimerDeliverMs > 0 {
		made.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(from.TimerDeliverMs, 10))
	}
	if from.Queue != nil {
		made.Queue = &primitive.MessageQueue{Topic: from.Topic, BrokerName: "broker-a", QueueId: *from.Queue}
	}
	return made
}

func sendPart(sender rocketmq.Producer, c command, part []outgoing) {
	var messages []*primitive.Message
	for _, from := range part {
		messages = append(messages, message(from))
	}
	began := nowMs()
	if c.Mode == "oneway" {
		err := sender.SendOneWay(context.Background(), messages...)
		for i, from := range part {
			if err != nil {
				emit("send_failed", c.ID, object{"n": from.N, "error": err.Error()})
				continue
			}
			emit("sent", c.ID, object{"n": from.N, "began_ms": began, "ended_ms": nowMs(), "status": "ONEWAY",
				"msg_id": messages[i].GetProperty("UNIQ_KEY")})
		}
		return
	}
	if c.Mode == "async" {
		err := sender.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			answered(c, part, began, result, err)
		}, messages...)
		if err != nil {
			answered(c, part, began, nil, err)
		}
		return
	}
	result, err := sender.SendSync(context.Background(), messages...)
	answered(c, part, began, result, err)
}

func answered(c command, part []outgoing, began int64, result *primitive.SendResult, err error) {
	if err != nil || result.Status != primitive.SendOK {
		for _, from := range part {
			emit("send_failed", c.ID, object{"n": from.N, "error": fmt.Sprint(err, result)})
		}
		return
	}
	ids, offsetIDs := strings.Split(result.MsgID, ","), strings.Split(result.OffsetMsgID, ",")
	for i, from := range part {
		line := object{"n": from.N, "began_ms": began, "ended_ms": nowMs(), "status": "SEND_OK",
			"queue_id": result.MessageQueue.QueueId, "queue_offset": result.QueueOffset + int64(i),
			"broker_name": result.MessageQueue.BrokerName, "region": result.RegionID}
		if i < len(ids) {
			line["msg_id"] = ids[i]
		}
		if i < len(offsetIDs) {
			line["offset_msg_id"] = offsetIDs[i]
		}
		emit("sent", c.ID, line)
	}
}

func produce(c command) error {
	options := []producer.Option{producer.WithNameServer(namesrv), producer.WithGroupName(c.Group),
		producer.WithInstanceName(c.ID), producer.WithSendMsgTimeout(10 * time.Second), producer.WithRetry(2)}
	if c.Access != "" {
		options = append(options, producer.WithCredentials(primitive.Credentials{AccessKey: c.Access, SecretKey: c.Secret}))
	}
	if len(c.Messages) > 0 && c.Messages[0].Queue != nil {
		options = append(options, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	}
	sender, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	work := make(chan []outgoing, len(c.Messages))
	size := atLeastOne(c.Batch)
	for rest := c.Messages; len(rest) > 0; {
		if len(rest) < size {
			size = len(rest)
		}
		work <- rest[:size]
		rest = rest[size:]
	}
	close(work)
	var group sync.WaitGroup
	var begun atomic.Int64
	began := time.Now()
	for i := 0; i < atLeastOne(c.Threads); i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for part := range work {
				if c.Rate > 0 {
					time.Sleep(time.Until(began.Add(time.Duration((begun.Add(1)-1)*1000/c.Rate) * time.Millisecond)))
				}
				sendPart(sender, c, part)
			}
		}()
	}
	group.Wait()
	emit("produced", c.ID, object{})
	return nil
}

func received(id string, msg *primitive.MessageExt, now int64) {
	digest := sha256.Sum256(msg.Body)
	emit("received", id, object{
		"received_ms": now, "topic": msg.Topic, "msg_id": msg.MsgId, "offset_msg_id": msg.OffsetMsgId,
		"body_sha256": hex.EncodeToString(digest[:]), "body_bytes": len(msg.Body), "tags": msg.GetTags(),
		"keys": msg.GetKeys(), "properties": msg.GetProperties(), "born_ms": msg.BornTimestamp,
		"born_host": msg.BornHost, "store_ms": msg.StoreTimestamp, "store_host": msg.StoreHost,
		"queue_id": msg.Queue.QueueId, "queue_offset": msg.QueueOffset, "commit_log_offset": msg.CommitLogOffset,
		"reconsume_times": msg.ReconsumeTimes, "flag": msg.Flag, "sys_flag": msg.SysFlag,
		"prepared_offset": msg.PreparedTransactionOffset,
	})
}

func consume(c command) error {
	options := []consumer.Option{consumer.WithNameServer(namesrv), consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.ID), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(c.Order == "yes")}
	if c.Access != "" {
		options = append(options, consumer.WithCredentials(primitive.Credentials{AccessKey: c.Access, SecretKey: c.Secret}))
	}
	if c.Model == "broadcasting" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if c.MaxReconsume != nil {
		options = append(options, consumer.WithMaxReconsumeTimes(*c.MaxReconsume))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	var replier rocketmq.Producer
	if c.Reply != "" {
		replier, err = rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName(c.Group+"-reply"),
			producer.WithInstanceName(c.ID+"-reply"))
		if err != nil {
			return err
		}
		if err := replier.Start(); err != nil {
			return err
		}
	}
	for topic, expression := range c.Topics {
		wanted, _ := strconv.Atoi(c.Retries[topic])
		selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		if c.Sql == "yes" {
			selector.Type = consumer.SQL92
		}
		err := made.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			now := nowMs()
			for _, msg := range messages {
				if c.Brief == "yes" {
					emit("received", c.ID, object{"received_ms": now, "store_ms": msg.StoreTimestamp, "properties": msg.GetProperties()})
				} else {
					received(c.ID, msg, now)
				}
				if c.Reply != "" {
					reply(c, replier, msg)
				}
				if int(msg.ReconsumeTimes) < wanted {
					return consumer.ConsumeRetryLater, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		})
		if err != nil {
			return err
		}
	}
	if err := made.Start(); err != nil {
		return err
	}
	emit("consuming", c.ID, object{})
	return nil
}

var states = map[string]primitive.LocalTransactionState{"COMMIT_MESSAGE": primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState, "UNKNOW": primitive.UnknowState}

// transactions answers what each message says: its outcome, and what each check-back is told.
type transactions struct {
	id     string
	lock   sync.Mutex
	wanted map[string]outgoing
	asked  map[string]int
}

func (t *transactions) ExecuteLocalTransaction(msg *primitive.Message) primitive.LocalTransactionState {
	return states[t.wanted[msg.GetProperty("it_n")].Outcome]
}

func (t *transactions) CheckLocalTransaction(msg *primitive.MessageExt) primitive.LocalTransactionState {
	n := msg.GetProperty("it_n")
	t.lock.Lock()
	t.asked[n]++
	times := t.asked[n]
	t.lock.Unlock()
	emit("checked", t.id, object{"properties": msg.GetProperties(), "topic": msg.Topic, "queue_offset": msg.QueueOffset,
		"commit_log_offset": msg.CommitLogOffset, "transaction_id": msg.TransactionId})
	answers := t.wanted[n].Checks
	if len(answers) == 0 {
		return primitive.UnknowState
	}
	if times > len(answers) {
		times = len(answers)
	}
	return states[answers[times-1]]
}

func transact(c command) error {
	listener := &transactions{id: c.ID, wanted: map[string]outgoing{}, asked: map[string]int{}}
	for _, from := range c.Messages {
		listener.wanted[strconv.Itoa(from.N)] = from
	}
	sender, err := rocketmq.NewTransactionProducer(listener, producer.WithNameServer(namesrv),
		producer.WithGroupName(c.Group), producer.WithInstanceName(c.ID), producer.WithSendMsgTimeout(10*time.Second))
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	for _, from := range c.Messages {
		if from.OnlyChecked == "yes" {
			continue
		}
		result, err := sender.SendMessageInTransaction(context.Background(), message(from))
		if err != nil {
			emit("send_failed", c.ID, object{"n": from.N, "error": err.Error()})
			continue
		}
		emit("transacted", c.ID, object{"n": from.N, "status": "SEND_OK", "msg_id": result.MsgID,
			"transaction_id": result.TransactionID, "queue_offset": result.QueueOffset,
			"offset_msg_id": result.OffsetMsgID, "queue_id": result.MessageQueue.QueueId})
	}
	emit("transactions", c.ID, object{})
	return nil
}

func replied(c command, n int, msg *primitive.Message) {
	emit("replied", c.ID, object{"n": n, "body": string(msg.Body), "properties": msg.GetProperties()})
}

func request(c command) error {
	sender, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName(c.Group),
		producer.WithInstanceName(c.ID), producer.WithSendMsgTimeout(10*time.Second))
	if err != nil {
		return err
	}
	if err := sender.Start(); err != nil {
		return err
	}
	// The first request to a topic makes the client known to the broker, in the background: let that happen.
	sender.Request(context.Background(), time.Second, primitive.NewMessage(c.Messages[0].Topic, []byte("hello")).WithTag("hello"))
	timeout := time.Duration(c.Timeout) * time.Millisecond
	for _, from := range c.Messages {
		n := from.N
		if c.Mode == "async" {
			callback := func(_ context.Context, msg *primitive.Message, err error) {
				if err != nil {
					emit("unanswered", c.ID, object{"n": n, "error": err.Error()})
				} else {
					replied(c, n, msg)
				}
			}
			if err := sender.RequestAsync(context.Background(), timeout, callback, message(from)); err != nil {
				return err
			}
			continue
		}
		msg, err := sender.Request(context.Background(), timeout, message(from))
		if err != nil {
			emit("unanswered", c.ID, object{"n": n, "error": err.Error()})
			continue
		}
		replied(c, n, msg)
	}
	emit("requested", c.ID, object{})
	return nil
}

func reply(c command, sender rocketmq.Producer, msg *primitive.MessageExt) {
	made, err := consumer.CreateReplyMessage(msg, nil)
	if err == nil {
		made.Body = append([]byte(c.Reply), msg.Body...) // CreateReplyMessage of 2.1.2 forgets it
		_, err = sender.SendSync(context.Background(), made)
	}
	if err != nil {
		emit("unanswered", c.ID, object{"n": msg.GetProperty("it_n"), "error": err.Error()})
		return
	}
	emit("answered", c.ID, object{"n": msg.GetProperty("it_n"), "topic": made.Topic})
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		go func() {
			var err error
			switch c.Op {
			case "produce":
				err = produce(c)
			case "consume":
				err = consume(c)
			case "transact":
				err = transact(c)
			case "request":
				err = request(c)
			case "quit":
				os.Exit(0)
			default:
				err = fmt.Errorf("unknown op %s", c.Op)
			}
			if err != nil {
				emit("failed", c.ID, object{"error": err.Error()})
			}
		}()
	}
}
