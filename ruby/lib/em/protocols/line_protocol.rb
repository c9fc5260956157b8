# frozen_string_literal: true

module EventMachine
  module Protocols
    # Calls `receive_line` with each line, without its end.
    module LineProtocol
      def receive_data(data)
        (@line_tokenizer ||= BufferedTokenizer.new("\n")).extract(data).each { |line| receive_line(line.chomp("\r")) }
      end

      def receive_line(_line); end
    end
  end
end
