# frozen_string_literal: true

module EventMachine
  module Protocols
    # STOMP 1.0. A handler includes this, calls `connect` when it is connected, and defines `receive_msg`.
    module Stomp
      # A frame.
      class Message
        attr_accessor :command, :header, :body
        alias headers header

        def initialize(command = nil, header = {}, body = '')
          @command = command
          @header = header
          @body = body
        end

        # The frame as it is sent.
        def to_s
          "#{@command}\n#{@header.map { |name, value| "#{name}: #{value}\n" }.join}\n#{@body}\0\n"
        end
      end

      # The longest frame that is received. A longer one ends the connection.
      MAX_FRAME = 16 * 1024 * 1024

      def receive_data(data)
        (@stomp_input ||= String.new(encoding: Encoding::BINARY)) << data
        while (message = take_frame)
          receive_msg(message)
        end
        close_connection if @stomp_input.bytesize > MAX_FRAME
      end

      def receive_msg(_message); end

      # Logs in, with `login` and `passcode`.
      def connect(parms = {})
        send_frame('CONNECT', parms)
      end

      # Sends a message to a destination.
      def send(destname, body, parms = {})
        send_frame('SEND', parms.merge('destination' => destname), body.to_s)
      end

      # Receives the messages of a destination. With `ack`, each has to be acknowledged.
      def subscribe(dest, ack = false)
        send_frame('SUBSCRIBE', 'destination' => dest, 'ack' => ack ? 'client' : 'auto')
      end

      # Acknowledges a message, given its id.
      def ack(msgid)
        send_frame('ACK', 'message-id' => msgid)
      end

      private

      def send_frame(command, header, body = '')
        lines = header.map { |name, value| [name.to_s, value.to_s] }
        raise ArgumentError, 'a header of STOMP has no line breaks' if lines.flatten.any? { |text| text.match?(/[\r\n]/) }

        # The length is in bytes, so that a body may contain NULs.
        header = lines.to_h
        header['content-length'] = body.bytesize unless body.empty?
        send_data(Message.new(command, header, body).to_s)
      end

      def take_frame
        @stomp_input.sub!(/\A[\r\n]+/, '')
        head_end = @stomp_input.index(/\r?\n\r?\n/) or return
        body_at = head_end + Regexp.last_match(0).size
        command, *lines = @stomp_input[0, head_end].split(/\r?\n/)
        header = lines.to_h { |line| line.split(/:\s*/, 2) }
        length = header['content-length']
        body_end = length ? body_at + length.to_i : @stomp_input.index("\0", body_at)
        return if body_end.nil? || @stomp_input.bytesize <= body_end

        body = @stomp_input[body_at...body_end]
        @stomp_input.slice!(0, body_end + 1)
        Message.new(command, header, body)
      end
    end
  end
end
